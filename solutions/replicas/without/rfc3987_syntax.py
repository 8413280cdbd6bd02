"""In the place of a package of this name, for the processes of Ray.

Each of them imports jsonschema, which imports that package if it is there, as Jupyter wants it;
and it takes longer to import than all of Ray. jsonschema does without.
"""

raise ImportError("left out")
