"""Flags that several commands share, their spellings, and the wording of usage errors."""

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax

from training.disk import local_path
from training.mesh.cpu import as_devices
from training.mesh.placement import Placement
from training.mesh.shape import n_places
from training.settings import EXPECTED
from training.tasks.objectives import resolved

DTYPES = ("float32", "bfloat16", "float16")
KINDS = {kind.__name__: expected for kind, expected in EXPECTED.items()}
CHOICE = re.compile(r"argument (.+?): invalid choice: (.+) \(choose from (.+)\)", re.DOTALL)
VALUE = re.compile(r"argument (.+?): invalid (\w+) value: (.+)", re.DOTALL)
MISSING = re.compile(r"the following arguments are required: (.+)")
ONE_VALUE = re.compile(r"argument (.+?): expected (?:one|at least one) argument")
MEANT = {
    "tau": ("temperature", "temp"),
    "l_gen": ("max_tokens", "max_new_tokens", "max_length", "length", "num_predict"),
    "l_max": ("length", "max_length", "max_seq_len", "seq_len", "context", "context_length", "block_size", "n_ctx"),
    "learning_rate": ("lr", "peak_lr", "max_lr"),
    "steps": ("max_steps", "iters", "max_iters", "num_steps", "iterations"),
    "data": ("dataset", "file", "input", "text", "train_data"),
    "run": ("out", "out_dir", "output", "output_dir", "save_dir"),
    "from": ("model", "init_from", "checkpoint", "resume"),
    "L": ("layers", "n_layer", "n_layers", "num_layers", "num_hidden_layers"),
    "H": ("heads", "n_head", "n_heads", "num_heads", "num_attention_heads"),
    "d_e": ("d_model", "dim", "n_embd", "hidden_size", "embed_dim"),
    "d_mlp": ("d_ff", "ffn_dim", "intermediate_size"),
    "N_V": ("vocab_size", "vocabulary_size"),
    "n": ("num_samples", "num_return_sequences", "samples"),
    "repetition_penalty": ("repeat_penalty",),
    "beam_size": ("num_beams", "beams"),
    "dtype": ("precision", "torch_dtype"),
}
"""Name of a flag → what other programs call it."""
CLOSE = 0.75  # the similarity of a word that was meant


class UsageError(ValueError):
    """Invalid command-line arguments; the message is one sentence."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence each: what was expected, what was given, and a suggestion."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)  # --length is not --length-penalty
        super().__init__(**options)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:
        """Return the arguments, whose flags may have dashes or underscores. Raises UsageError if any is invalid."""
        words = spelled(sys.argv[1:] if args is None else args, self._flags())
        found, unknown = self.parse_known_args(words, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            for action in self._subcommands():
                names = [name for name, parser in action.choices.items() if word in parser._option_string_actions]
                if names:
                    chosen = getattr(found, action.dest)
                    self.error(f"{word}: expected a flag of {chosen}, got one of {', '.join(names)}; leave it out")
            self.error(f"{word}: expected {'a known flag' if word.startswith('-') else 'flags only'}, got {word!r}")
        return found

    def _subcommands(self) -> list[argparse._SubParsersAction]:
        return [action for action in self._actions if isinstance(action, argparse._SubParsersAction)]

    def error(self, message: str) -> NoReturn:
        """Raise argparse's message as a UsageError of one sentence."""
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
            meant = self._meant(match[1])
            return message + (
                f"; did you mean {meant}?" if meant else did_you_mean(match[1], self._flags()) or "; see --help"
            )
        return message.removeprefix("argument ")

    def _meant(self, word: str) -> str:
        """The flag for what other programs call so, or ""."""
        name, flags = word.strip("-").replace("-", "_").lower(), self._flags()
        own = [dest for dest, names in MEANT.items() if name in names]
        return next((flag for dest in own for flag in flags if dest == flag.strip("-").replace("-", "_")), "")

    def _flags(self) -> list[str]:
        own = [word for word in self._option_string_actions if word.startswith("--")]
        parsers = (parser for action in self._subcommands() for parser in action.choices.values())
        return own + [word for parser in parsers for word in parser._flags()]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean …?" with the known word that begins like it or is close to it, or "": a number, say, is
    like no other.

    Example:
        >>> did_you_mean("--learning_rat", ["--learning-rate", "--l_max"]), did_you_mean("16", ["6"])
        ('; did you mean --learning-rate?', '')
    """
    names = {name.lstrip("-"): name for name in known}  # dashes would count as similarity
    word = word.lstrip("-")
    if len(word) < 3 or word.isdecimal():
        return ""
    found = [name for name in names if name.startswith(word)] or difflib.get_close_matches(word, names, 1, CLOSE)
    return f"; did you mean {names[found[0]]}?" if found else ""


def spelled(argv: Sequence[str], flags: Iterable[str]) -> list[str]:
    """Return the arguments with every flag spelled as among these: ``--l-max`` becomes ``--l_max``."""
    known = {flag.replace("_", "-"): flag for flag in flags}
    end = list(argv).index("--") if "--" in argv else len(argv)
    words = [word.partition("=") if word.startswith("--") else (word, "", "") for word in argv[:end]]
    found = [known.get(name.replace("_", "-"), name) + equals + value for name, equals, value in words]
    return found + list(argv[end:])


def add_dtype(add: Callable[..., Any]) -> None:
    """Add ``--dtype``, the precision of the parameters."""
    add("--dtype", choices=DTYPES, help="convert the parameters to this type (default: as stored)")


def add_cache(add: Callable[..., Any]) -> None:
    """Add ``--cache``, the directory of tokenized and downloaded data; None by default, and if empty."""
    kept = "where to keep tokens and downloaded data (default: ~/.cache/formal-algorithms)"
    add("--cache", metavar="DIR", type=lambda text: local(text) if text else None, help=kept)


def add_inference(add: Callable[..., Any]) -> None:
    """Add the flags of inference: ``--dtype``, ``--mesh`` and ``--weights``."""
    auto = "auto is bfloat16 on TPUs and on GPUs that have it, and on CPUs the stored one (default: auto)"
    add("--dtype", choices=("auto", *DTYPES), default="auto", help=f"type of parameters and computation; {auto}")
    add("--mesh", default="", metavar="AXES", help="divide the model among devices, such as model=4 (default: none)")
    add("--weights", choices=("int8",), help="round the weights that every token reads to int8 (default: as trained)")


def add_model(add: Callable[..., Any]) -> None:
    """Add what every command has that takes any name of a model: ``--lines`` and ``--clear-models``."""
    add_lines(add)
    add("--clear-models", action="store_true", help="remove all converted models from the cache first")


def add_lines(add: Callable[..., Any]) -> None:
    """Add ``--lines``, the packages whose code a run may execute."""
    trusted = "trusted package with custom lines that is not installed; may be repeated"
    add("--lines", action="append", default=[], metavar="PACKAGE", help=trusted)


def add_markup(add: Callable[..., Any]) -> None:
    """Add ``--messages-are-markup``, which lets messages of a conversation contain control tokens."""
    text = "let names of control tokens, such as <|im_end|>, in messages become these tokens"
    add("--messages-are-markup", action="store_true", help=text)


def loading_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return how `load_run` loads a model for the flags of inference. Raises MeshError."""
    dtype = arguments.dtype
    if dtype == "auto":
        dtype = None if resolved(dtype) == "float32" else resolved(dtype)
    return {"dtype": dtype, "placement": placement_of(arguments.mesh), "lines": arguments.lines}


def type_of(theta: Any) -> str:
    """Return the type that a model computes in: that of its largest matrix, as it was before it was quantized."""
    leaves = jax.tree.leaves(theta, is_leaf=lambda W: hasattr(W, "times"))
    return str(max(leaves, key=lambda leaf: math.prod(leaf.shape)).dtype)


def placement_of(mesh: str) -> Placement | None:
    """Return the placement on a mesh; None for one device. Raises MeshError if it is invalid or does not fit."""
    if not mesh:
        return None
    as_devices(n_places(mesh))
    return Placement(mesh)


def local(text: str) -> Path:
    """Return the path that an argument names, or raise argparse's error if it is a URL: an argument type."""
    try:
        return local_path(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def size(text: str) -> int:
    """Return a number of bytes: an argument type.

    Example:
        >>> size("1.5G"), size("300")
        (1610612736, 300)
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)", text, re.ASCII)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected a number of bytes, such as 500M or 4G, got {text!r}")
    return int(float(match[1]) * 1024 ** "_KMGT".index(match[2] or "_"))


def at_least(least: int) -> Callable[[str], int]:
    """Return an argument type: an integer of at least ``least``."""

    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}, got {text!r}")
        return value

    return integer
