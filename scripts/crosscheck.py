"""Compare every numbered line of the paper's algorithms with the code that executes it: docs/crosscheck.md."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from tests.crosscheck.command import main

if __name__ == "__main__":
    sys.exit(main())
