"""Variants with custom lines: by name, from JSON, and from the packages that define them.

Importing a module runs its code. So files only get what is installed, imported already, or in the packages that the
caller names: `lines`.
"""

import importlib.util
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from algorithms import VARIANTS, Variant
from algorithms.machinery.record import Record
from algorithms.model.variants import name_of


def variant_named(text: str, lines: Sequence[str] = ()) -> Variant:
    """Return the variant that a setting names, published, ``PACKAGE.MODULE:NAME`` or JSON. Raises ValueError."""
    if text in VARIANTS:
        return VARIANTS[text]
    if text.startswith("{"):
        found, where = variant_from_json(_parsed(text), lines), "this JSON"
    else:
        module, _, name = text.partition(":")
        _check([module], lines)
        found, where = getattr(_imported(module), name, None), f"{module}:{name}"
    if not isinstance(found, Variant):
        raise ValueError(
            f"--variant: expected a Variant at {where}, such as LLAMA.but(attention=…), got {type(found).__name__}"
        )
    return found


def variant_from_json(written: Any, lines: Sequence[str] = ()) -> Any:
    """Return the record that ``to_json`` wrote, and import its classes' modules. Raises ValueError."""
    modules = [*dict.fromkeys(_modules_in(written))]
    _check(modules, lines)
    for module in modules:
        _imported(module)
    return Record.from_json(written)


def modules_of(text: str) -> tuple[str, ...]:
    """Return the modules that a setting names; who types it means to run them. Raises ValueError."""
    if text.startswith("{"):
        return tuple(_modules_in(_parsed(text)))
    return (text.partition(":")[0],) if ":" in text else ()


def has_custom_lines(variant: Variant) -> bool:
    """Return whether classes of other packages are in a variant."""
    return any(True for _ in _modules_in(variant.to_json()))


def setting_of(variant: Variant) -> str:
    """Return a variant as a setting: its name, its JSON with custom lines, or ``PAPER`` if composed of ours."""
    if has_custom_lines(variant):
        return json.dumps(variant.to_json(), sort_keys=True)
    return name_of(variant) or "PAPER"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"--variant: expected the JSON of a record, got {text[:80]!r}: {error}") from None


def _modules_in(written: Any) -> Iterator[str]:
    """The modules of the classes in the JSON of a record, except those of scripts."""
    if isinstance(written, dict):
        module, colon, _ = str(written.get("record")).rpartition(":")
        if colon and module != "__main__":
            yield module
    for part in written.values() if isinstance(written, dict) else written if isinstance(written, list) else ():
        yield from _modules_in(part)


def _check(modules: Sequence[str], lines: Sequence[str]) -> None:
    """Raise ValueError if importing a module runs code neither installed nor in the packages `lines`."""
    named = [m for m in modules if any(f"{m}.".startswith(f"{package}.") for package in lines)]
    refused = [m for m in modules if m not in named and m not in sys.modules and not _is_installed(m)]
    if refused:
        each, shown = " and ".join(refused), ", ".join(f'"{module}"' for module in refused)
        raise ValueError(
            f"{each}: expected an installed package with the lines of this model, got none; install it or, if you "
            f"trust the code of that name, give {' '.join(f'--lines {module}' for module in refused)} "
            f"(lines=[{shown}] in Python)"
        )
    if named and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))


def _is_installed(module: str) -> bool:
    """Whether a module, and each package around it, is where packages are installed."""
    places = [Path(path).absolute() for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    for name in itertools.accumulate(module.split("."), "{}.{}".format):
        try:
            spec = importlib.util.find_spec(name)  # imports the packages around it, found to be installed before
        except (ImportError, ValueError, AttributeError):
            return False
        found = [*(spec.submodule_search_locations or [spec.origin])] if spec else []
        if not found or not all(any(_is_in(file, place) for place in places) for file in found):
            return False
    return True


def _is_in(file: str | None, place: Path) -> bool:
    return bool(file) and place != Path.cwd() and Path(file).absolute().is_relative_to(place)


def _imported(module: str) -> Any:
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
