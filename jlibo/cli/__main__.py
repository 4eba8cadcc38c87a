"""`python -m jlibo.cli` is the command `jlibo`."""

import sys

from jlibo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
