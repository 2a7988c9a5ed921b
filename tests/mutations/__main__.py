"""The command `python -m tests.mutations`."""

import sys

from tests.mutations.runner import main

if __name__ == "__main__":
    sys.exit(main())
