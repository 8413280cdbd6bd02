"""`python -m gearworks` is the command `gearworks`."""

import sys

try:
    from gearworks.cli.commands import main
except KeyboardInterrupt:               # interrupted while Python was still reading the program
    sys.exit(130)

sys.exit(main())
