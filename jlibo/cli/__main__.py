"""Run the command line as `python -m jlibo.cli`; the same as the command `jlibo`."""

import sys

from jlibo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
