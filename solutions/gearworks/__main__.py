"""`python -m gearworks` is the command `gearworks`."""

import sys

from gearworks.cli import main

sys.exit(main())
