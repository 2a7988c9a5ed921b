"""Results of a cross-check, stored in a directory, so that an interrupted one continues."""

import dataclasses
import hashlib
import json
import pathlib
from collections import defaultdict
from typing import Any

import jax

from .algorithms import PSEUDOCODE
from .comparison import Cell, LineResult, Place, Results

__all__ = ["Kept"]


class Kept:
    """Results by name, in a directory; those of other code, seeds, sizes or algorithms are not read."""

    def __init__(self, folder: pathlib.Path, root: pathlib.Path, settings: dict[str, Any]) -> None:
        """`folder`: the directory; `root`: the root of the repository; `settings`: what the results depend on."""
        files = sorted(
            path
            for part in ("algorithms", "training/crosscheck", "training/oracle")
            for path in (root / part).rglob("*.py")
        )
        about = json.dumps([settings, jax.__version__]).encode()
        self.folder, self.of = (
            folder,
            hashlib.sha256(b"".join([about, *(path.read_bytes() for path in files)])).hexdigest(),
        )

    def read(self, name: str, changed: dict[Any, Any] | None = None) -> Results | None:
        """Return what is kept under a name, or None; `changed` are the lines that a variant changes."""
        try:
            data = json.loads((self.folder / f"{name}.json").read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return _results(data, changed or {}) if data.get("of") == self.of else None

    def write(self, name: str, results: Results) -> None:
        """Keep results under a name."""
        self.folder.mkdir(parents=True, exist_ok=True)
        unfinished = self.folder / f"{name}.unfinished"
        unfinished.write_text(json.dumps({"of": self.of, **_data(results)}), "utf-8")
        unfinished.replace(self.folder / f"{name}.json")


def _data(results: Results) -> dict[str, Any]:
    """Results as JSON has them, without what follows from the code."""
    lines = []
    for (n, number), result in results.lines.items():
        found = {"places": list(map(dataclasses.asdict, result.places)), "group": result.group, "within": result.within}
        found["cells"] = list(map(dataclasses.asdict, result.cells.values()))
        found["elsewhere"] = [[of, list(map(dataclasses.asdict, cells))] for of, cells in result.elsewhere.items()]
        lines.append([n, number, found])
    whole = {name: getattr(results, name) for name in ("settings", "first", "done", "picture")}
    return {**whole, "lines": lines, "errors": list(results.errors.items()), "taken": sorted(results.taken)}


def _results(data: dict[str, Any], changed: dict[Any, Any]) -> Results:
    lines = {}
    for n, number, found in data["lines"]:
        change = changed.get((n, number))
        lines[n, number] = LineResult(
            n,
            PSEUDOCODE[n].line(number) if change is None else change.line,
            places=[Place(**place) for place in found["places"]],
            group=tuple(found["group"]),
            cells={cell["variable"]: _cell(cell) for cell in found["cells"]},
            within=found["within"],
            change=change,
            elsewhere=defaultdict(list, {of: list(map(_cell, cells)) for of, cells in found["elsewhere"]}),
        )
    return Results(
        lines,
        {n: tuple(error) for n, error in data["errors"]},
        data["settings"],
        first=data["first"] and tuple(data["first"]),
        taken=set(data["taken"]),
        done=data["done"],
        picture=data["picture"],
    )


def _cell(data: dict[str, Any]) -> Cell:
    return Cell(**{**data, "shape": None if data["shape"] is None else tuple(data["shape"])})
