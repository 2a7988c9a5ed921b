"""What the command lines share: how flags are spelled, and what a number may be."""

import argparse
from collections.abc import Callable, Iterable, Sequence

PAPER_NAMES = frozenset({"N_V", "L", "L_enc", "L_dec", "H", "d_e", "d_mlp", "l_max", "l_gen", "p_mask"})


def flag(name: str) -> str:
    """Return the flag of a setting or an option; the paper's names stay as the paper writes them.

    Example:
        >>> flag("batch_size"), flag("l_max")
        ('--batch-size', '--l_max')
    """
    name = {"start_from": "from"}.get(name, name)  # a word that Python keeps for itself
    return "--" + (name if name in PAPER_NAMES else name.replace("_", "-"))


def spelled(argv: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the arguments with every flag as it is known: ``--l-max`` and ``--l_max`` are the same.

    Args:
        argv: the arguments.
        names: of the settings and options.

    Example:
        >>> spelled(["--l-max=9", "--batch_size", "4", "--", "--l-max"], ["l_max", "batch_size"])
        ['--l_max=9', '--batch-size', '4', '--', '--l-max']
    """
    known = {flag(name).replace("_", "-"): flag(name) for name in names}
    end = list(argv).index("--") if "--" in argv else len(argv)
    return [_spelled(word, known) for word in argv[:end]] + list(argv[end:])


def _spelled(word: str, known: dict[str, str]) -> str:
    name, equals, value = word.partition("=")
    return known.get(name.replace("_", "-"), name) + equals + value if name.startswith("--") else word


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an argument that is an integer, and not less than this."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return value

    return integer
