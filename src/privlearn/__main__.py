"""`python -m privlearn`: the command line."""

import sys

from privlearn.cli import main

if __name__ == "__main__":
    sys.exit(main())
