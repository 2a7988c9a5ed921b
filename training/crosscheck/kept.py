"""Results of a cross-check, stored in a directory, so that an interrupted one continues."""

import dataclasses
import hashlib
import json
import pathlib
from collections import defaultdict
from typing import Any

import jax

from .report import Place
from .results import Cell, LineResult, Results

__all__ = ["Kept"]


class Kept:
    """Results by name, in a directory; those of other code, seeds, sizes or algorithms are not read."""

    def __init__(self, folder: pathlib.Path, root: pathlib.Path, settings: dict[str, Any]) -> None:
        """`folder`: the directory; `root`: the root of the repository; `settings`: what the results depend on."""
        parts = (root / "algorithms", root / "training" / "crosscheck", root / "training" / "oracle")
        files = sorted(path for part in parts for path in part.rglob("*.py"))
        about = json.dumps([settings, jax.__version__]).encode()
        self.folder = folder
        self.of = hashlib.sha256(b"".join([about, *(path.read_bytes() for path in files)])).hexdigest()

    def read(self, name: str, changed: dict[Any, Any] | None = None) -> Results | None:
        """Return what is kept under a name, or None; `changed` are the lines that a variant changes."""
        try:
            data = json.loads((self.folder / f"{name}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return _results(data, changed or {}) if data.pop("of", None) == self.of else None

    def write(self, name: str, results: Results) -> None:
        """Keep results under a name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f"{name}.unfinished"
        unfinished.write_text(json.dumps({"of": self.of, **_data(results)}), "utf-8")
        unfinished.replace(self.folder / f"{name}.json")


def _data(results: Results) -> dict[str, Any]:
    """Results as JSON has them, without what follows from the code."""
    lines = (dataclasses.replace(line, change=None, elsewhere=dict(line.elsewhere)) for line in results.lines.values())
    whole = {name: getattr(results, name) for name in ("settings", "first", "done", "picture")}
    errors, taken = list(results.errors.items()), sorted(results.taken)
    return {**whole, "lines": list(map(dataclasses.asdict, lines)), "errors": errors, "taken": taken}


def _results(data: dict[str, Any], changed: dict[Any, Any]) -> Results:
    lines = [_line(line) for line in data.pop("lines")]
    for line in lines:
        line.change = changed.get((line.algorithm, line.number))
    errors, first = {n: tuple(error) for n, error in data.pop("errors")}, data.pop("first")
    whole: dict[str, Any] = {**data, "first": first and tuple(first), "taken": set(data["taken"])}
    return Results({(line.algorithm, line.number): line for line in lines}, errors, **whole)


def _line(data: dict[str, Any]) -> LineResult:
    elsewhere = {int(n): [_cell(cell) for cell in cells] for n, cells in data["elsewhere"].items()}
    data |= {"elsewhere": defaultdict(list, elsewhere), "cells": {n: _cell(cell) for n, cell in data["cells"].items()}}
    return LineResult(**data | {"places": [Place(**place) for place in data["places"]], "group": tuple(data["group"])})


def _cell(data: dict[str, Any]) -> Cell:
    return Cell(**{**data, "shape": None if data["shape"] is None else tuple(data["shape"])})
