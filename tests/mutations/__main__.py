"""The command `python -m tests.mutations`."""

import sys

from tests.mutations import main

if __name__ == "__main__":
    sys.exit(main())
