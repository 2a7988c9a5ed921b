"""Results of a cross-check, stored in a directory, so that an interrupted one continues."""

import dataclasses
import hashlib
import json
import pathlib
from typing import Any

import jax

from training.disk import write_atomically

from .report import Place
from .results import Cell, LineResult, Results

__all__ = ["StoredResults"]


class StoredResults:
    """Results by name, in a directory; those of other code, seeds, sizes or algorithms are not read."""

    def __init__(self, folder: pathlib.Path, root: pathlib.Path, settings: dict[str, Any]) -> None:
        """`folder`: the directory; `root`: the root of the repository; `settings`: what the results depend on."""
        parts = (root / "algorithms", root / "training" / "crosscheck", root / "training" / "oracle")
        files = sorted(path for part in parts for path in part.rglob("*.py"))
        about = json.dumps([settings, jax.__version__]).encode()
        self.folder = folder
        self.of = hashlib.sha256(b"".join([about, *(path.read_bytes() for path in files)])).hexdigest()

    def read(self, name: str, changed: dict[Any, Any] | None = None) -> Results | None:
        """Return what is stored under a name, or None; `changed` are the lines that a variant changes."""
        try:
            data = json.loads((self.folder / f"{name}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return _results(data, changed or {}) if data.pop("of", None) == self.of else None

    def write(self, name: str, results: Results) -> None:
        """Store results under a name."""
        text = json.dumps({"of": self.of, **_data(results)})
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / f"{name}.json", lambda unfinished: unfinished.write_text(text, "utf-8"))


def _data(results: Results) -> dict[str, Any]:
    """Results as JSON has them, without what follows from the code."""
    lines = (dataclasses.replace(line, change=None) for line in results.lines.values())
    whole = {name: getattr(results, name) for name in ("settings", "first", "done")}
    errors, taken = list(results.errors.items()), sorted(results.taken)
    return {**whole, "lines": list(map(dataclasses.asdict, lines)), "errors": errors, "taken": taken}


def _results(data: dict[str, Any], changed: dict[Any, Any]) -> Results:
    lines, errors, first = (data.pop(name) for name in ("lines", "errors", "first"))
    for of in lines:
        of |= {"places": [Place(**place) for place in of["places"]], "elsewhere": [Cell(**c) for c in of["elsewhere"]]}
        of |= {"cells": {name: Cell(**cell) for name, cell in of["cells"].items()}}
        of |= {"change": changed.get((of["algorithm"], of["number"]))}
    found = {(of["algorithm"], of["number"]): LineResult(**of) for of in lines}
    whole: dict[str, Any] = {**data, "first": first and tuple(first), "taken": set(data["taken"])}
    return Results(found, {n: tuple(error) for n, error in errors}, **whole)
