"""What ``make site`` adds to the documents: the README, the tour and the book, and where links out of docs/ lead."""

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

from training.crosscheck.book.listing import page_of

ROOT = Path(__file__).resolve().parents[1]
BOOK = ROOT / "build" / "book"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "CONTRIBUTING.md", "CHANGELOG.md": "CHANGELOG.md"}
"""File of the repository → page of the site; ``docs/`` has the others."""
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add pages that are not in docs/: the README, the tour as Markdown, and the book's."""
    for name, page in PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text("utf-8")))
    tour = files.get_file_from_path("tour.ipynb")
    if tour is not None:
        files.remove(tour)
        _add_tour(files, config)
    for path in sorted(BOOK.glob("*.*")):
        files.append(File.generated(config, f"book/{path.name}", abs_src_path=str(path)))
    return files


def _add_tour(files: Files, config: Any) -> None:
    lines = []
    for number, cell in enumerate(json.loads((ROOT / "docs" / "tour.ipynb").read_text("utf-8"))["cells"]):
        source = "".join(cell["source"])
        lines.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                name = f"pictures/tour-{number}.png"
                picture = base64.b64decode("".join(data["image/png"]))
                files.append(File.generated(config, name, content=picture))
                lines.append(f"![the picture that this cell draws]({name})")
            elif text := "".join(output.get("text", data.get("text/plain", ()))).strip():
                lines.append(f"```text\n{text}\n```")
    files.append(File.generated(config, "tour.md", content="\n\n".join(lines)))


def on_page_markdown(markdown: str, page: Any, files: Files, **_: Any) -> str:
    """Lead links to files of the repository to documents or to the book's listings; others become text."""
    own = page.file.src_uri
    before = "" if own in PAGES.values() else posixpath.join("docs", posixpath.dirname(own))

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match.groups()
        path = posixpath.normpath(posixpath.join(before, target))
        listing = f"book/{page_of(path)}" if path.startswith("algorithms/") and path.endswith(".py") else ""
        if path in PAGES:
            found = PAGES[path]
        elif path.startswith("docs/"):
            found = path.removeprefix("docs/").replace("tour.ipynb", "tour.md")
        elif listing and files.get_file_from_path(listing) is not None:
            found = listing
        else:
            return text[1:-1]
        return f"{text}({posixpath.relpath(found, posixpath.dirname(own) or '.')}{anchor or ''})"

    parts = re.split(r"(^```.*?^```)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(_session(part) if part.startswith("```") else LINK.sub(replaced, part) for part in parts)


def _session(block: str) -> str:
    """Name the language of a block with prompts, so that prompts and results are marked, and not copied."""
    return block.replace("```python\n>>> ", "```pycon\n>>> ", 1)
