"""The command of training/commands/crosscheck.py: see --help."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout needs no installation

from training.commands import Arguments, command


@command
def crosscheck_main(argv: Arguments) -> int:
    """Run the command."""
    from training.commands.crosscheck import main

    return main(argv)


if __name__ == "__main__":
    sys.exit(crosscheck_main())
