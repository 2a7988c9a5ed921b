"""The page of a check of foreign code: the paper's lines, the foreign source lines that hold their values, departures."""

import dataclasses
import os
import pathlib
from typing import Any

from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.book.listing import excerpts, listing, page_of
from training.crosscheck.book.pages import write_pages
from training.foreign.report import Report

__all__ = ["write_report"]


def write_report(report: Report, folder: pathlib.Path) -> pathlib.Path:
    """Write the report as a page, with a page for each foreign source file; returns the page's path."""
    rows = list(report.lines.values())
    files = {pathlib.Path(place.file) for row in rows for place in row.places}
    root = pathlib.Path(os.path.commonpath([file.parent for file in files])).parent if files else folder
    names = {str(file): file.relative_to(root).as_posix() for file in sorted(files)}
    sides = []
    for n in dict.fromkeys(row.algorithm for row in rows):
        own = [
            dataclasses.replace(row, places=[dataclasses.replace(of, file=names[of.file]) for of in row.places])
            for row in rows
            if row.algorithm == n
        ]
        sides.append({"algorithm": PSEUDOCODE[n], "results": own, "excerpts": excerpts(own, root)})
    variables = {"report": report, "sides": sides}
    pages: dict[str, tuple[str, dict[str, Any]]] = {"index.html": ("report.html", variables)}
    for file, name in names.items():
        pages[page_of(name)] = ("source.html", {"file": name, "lines": listing(pathlib.Path(file))})
    return write_pages(folder, pages)
