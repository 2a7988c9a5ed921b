"""Shared by the command lines: spellings of flags, ranges of numbers, and the wording of usage errors."""

import argparse
import difflib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

from training.mesh.cpu import as_devices
from training.mesh.placement import Placement
from training.mesh.shape import n_places
from training.settings import flag

KINDS = {"int": "an integer", "float": "a number"}
CHOICE = re.compile(r"argument (.+?): invalid choice: (.+) \(choose from (.+)\)", re.DOTALL)
VALUE = re.compile(r"argument (.+?): invalid (\w+) value: (.+)", re.DOTALL)
MISSING = re.compile(r"the following arguments are required: (.+)")
ONE_VALUE = re.compile(r"argument (.+?): expected (?:one|at least one) argument")


class UsageError(ValueError):
    """The arguments are not those of the command; the message is one sentence."""


class Parser(argparse.ArgumentParser):
    """A command line whose errors are one sentence each: what was expected, what was given, and a suggestion."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Return the arguments, or raise UsageError if one of them is not known, missing, or impossible."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            self._check_task(word, found)
            self.error(f"{word}: expected {'a known flag' if word.startswith('-') else 'flags only'}, got {word!r}")
        return found

    def _check_task(self, word: str, found: argparse.Namespace) -> None:
        """Raise where a flag is that of other subcommands than the one that was chosen."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                names = [name for name, parser in action.choices.items() if word in parser._option_string_actions]
                if names:
                    chosen = getattr(found, action.dest)
                    self.error(f"{word}: expected a flag of {chosen}, got one of {', '.join(names)}; leave it out")

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong as a UsageError of one sentence."""
        raise UsageError(self._sentence(message)) from None

    def _sentence(self, message: str) -> str:
        if match := CHOICE.fullmatch(message):
            name, got, choices = match.groups()
            known = [choice.strip("'") for choice in choices.split(", ")]
            what = "" if name.startswith("{") else f"{name}: "
            return f"{what}expected one of {', '.join(known)}, got {got}{did_you_mean(got.strip(chr(39)), known)}"
        if match := VALUE.fullmatch(message):
            name, kind, got = match.groups()
            return f"{name}: expected {KINDS.get(kind, kind)}, got {got}"
        if match := ONE_VALUE.fullmatch(message):
            return f"{match[1]}: expected a value, got none"
        if match := MISSING.fullmatch(message):
            return f"expected {match[1]}, got none; see --help"
        if match := re.match(r"(\S+): expected (a known flag|flags only), got", message):
            return f"{message}{did_you_mean(match[1], self._flags()) or '; see --help'}"
        return message.removeprefix("argument ")

    def _flags(self) -> list[str]:
        """Return the flags of this command line and of its subcommands."""
        own = [word for word in self._option_string_actions if word.startswith("--")]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                own += [word for parser in action.choices.values() for word in parser._flags()]
        return own


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a "did you mean" with the closest known word, or nothing.

    Example:
        >>> did_you_mean("--learning_rat", ["--learning-rate", "--l_max"]), did_you_mean("x", ["--l_max"])
        ('; did you mean --learning-rate?', '')
    """
    names = {name.lstrip("-"): name for name in known}  # the dashes are alike in all
    found = difflib.get_close_matches(word.lstrip("-"), names, n=1)
    return f"; did you mean {names[found[0]]}?" if found else ""


def spelled(argv: Sequence[str], names: Iterable[str]) -> list[str]:
    """Return the arguments with every flag in its canonical spelling: ``--l-max`` and ``--l_max`` are the same.

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


DTYPES = ("float32", "bfloat16", "float16")


def add_dtype(add: Callable[..., Any]) -> None:
    """Add the flag that says in which precision a model is kept."""
    add("--dtype", choices=DTYPES, help="what the parameters become (default: what they are)")


def add_mesh(add: Callable[..., Any]) -> None:
    """Add the flag that says which devices share a model."""
    add("--mesh", default="", metavar="AXES", help="devices that share the model, as model=4 (default: one has it all)")


def placement_of(mesh: str) -> Placement | None:
    """Return where the parts of a model lie; None: on one device. Raises MeshError if the mesh is not one, or has
    another number of devices.
    """
    if not mesh:
        return None
    as_devices(n_places(mesh))
    return Placement(mesh)


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
