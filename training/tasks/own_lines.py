"""Variants with lines of one's own: by name, from JSON, and from the packages that define them."""

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from algorithms import VARIANTS, Variant
from algorithms.machinery.record import Record
from algorithms.model.variants import name_of


def variant_named(text: str) -> Variant:
    """Return the variant that a setting names, published, ``PACKAGE.MODULE:NAME`` or JSON. Raises ValueError."""
    if text in VARIANTS:
        return VARIANTS[text]
    if text.startswith("{"):
        try:
            written = json.loads(text)
        except ValueError as error:
            raise ValueError(f"--variant: expected the JSON of a record, got {text[:80]!r}: {error}") from None
        found, where = variant_from_json(written), "this JSON"
    else:
        module, _, name = text.partition(":")
        found, where = getattr(_imported(module), name, None), f"{module}:{name}"
    if not isinstance(found, Variant):
        raise ValueError(
            f"--variant: expected a Variant at {where}, such as LLAMA.but(attention=…), got {type(found).__name__}"
        )
    return found


def variant_from_json(written: Any) -> Any:
    """Return the record that ``to_json`` wrote, and import its classes' packages. Raises ValueError."""
    for module in dict.fromkeys(_modules_in(written)):
        _imported(module)
    return Record.from_json(written)


def has_lines_of_ones_own(variant: Variant) -> bool:
    """Return whether classes of other packages are in a variant."""
    return any(True for _ in _modules_in(variant.to_json()))


def setting_of(variant: Variant) -> str:
    """Return a variant as a setting: its name, its JSON with lines of one's own, or ``PAPER`` if composed of ours."""
    if has_lines_of_ones_own(variant):
        return json.dumps(variant.to_json(), sort_keys=True)
    return name_of(variant) or "PAPER"


def _modules_in(written: Any) -> Iterator[str]:
    """The modules of the classes in the JSON of a record, except those of scripts."""
    if isinstance(written, dict):
        module, colon, _ = str(written.get("record")).rpartition(":")
        if colon and module != "__main__":
            yield module
    for part in written.values() if isinstance(written, dict) else written if isinstance(written, list) else ():
        yield from _modules_in(part)


def _imported(module: str) -> Any:
    """A module, also of the working directory, which is searched last."""
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise ValueError(f"{module}: cannot be imported: {error}; install what it needs") from None
        raise ValueError(
            f"{module}: expected a module with the lines of this model, got none of this name; install its package, or "
            "name its folder in PYTHONPATH"
        ) from None
    except (ImportError, ValueError, TypeError, SyntaxError) as error:
        raise ValueError(f"{module}: cannot be imported: {type(error).__name__}: {error}") from None
