"""`make site`: it builds without a warning, asks the network for nothing, and its links and its search work."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.end_to_end
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of a copy of the documents, with two pages in place of the book."""
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    place = tmp_path_factory.mktemp("place")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, place)
    shutil.copytree(ROOT / "docs", place / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("__pycache__", "assets/__pycache__"):  # as after other commands
        (place / "docs" / name).mkdir()
        (place / "docs" / name / "website.cpython-311.pyc").write_bytes(b"code")
    (place / "build" / "book").mkdir(parents=True)
    for name in ("index.html", "source-alg03_attention.html"):
        (place / "build" / "book" / name).write_text("<!doctype html><title>a page of the book</title>")
    environment = os.environ | {"PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=place, env=environment)
    assert done.returncode == 0, done.stderr
    return place / "build" / "site"


def test_all_pages_are_there(site):
    written = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert all((site / page).is_file() for page in written)
    assert (site / "book" / "source-alg03_attention.html").is_file()


def test_links_out_of_the_documents_lead_to_the_book_or_are_text(site):
    page = (site / "index.html").read_text("utf-8")
    assert '<a href="book/source-alg03_attention.html"><code>attention</code></a>' in page
    assert "<code>token_embedding</code>" in page  # whose listing is not there
    assert 'href="algorithms/' not in page
    assert 'href="tests/' not in page


def test_pages_ask_the_network_for_nothing(site):
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        assert not re.findall(r'<(?:script|img|iframe)[^>]* src="?https?:', text), path
        assert not re.findall(r'<link[^>]* rel="?(?:stylesheet|preload|icon)"?[^>]* href="?https?:', text), path


def test_the_search_works_in_pages_opened_as_files(site, browser, tmp_path):
    url = f"{(site / 'notes' / 'scaling.html').as_uri()}?q=preemption"
    page = browser(url, tmp_path, "--virtual-time-budget=10000", "--dump-dom").stdout
    assert re.search(r"[1-9]\d* matching document", page)
    assert re.search(r'href="[^"]*accelerators\.html', page[page.index("matching document") :])


def test_examples_come_along_and_other_code_does_not(site):
    pages = [(site / f"{name}.html").read_text("utf-8") for name in ("check-your-own", "research", "inside")]
    linked = re.findall(r'href="(examples/[^"]+)"', "".join(pages))
    assert len(linked) == len(set(linked)) == 7
    assert all((site / example).is_file() for example in linked)
    code = {path.relative_to(site).as_posix() for path in site.rglob("*.py")}
    assert code == {path for path in linked if path.endswith(".py")}
    assert not [path for path in site.rglob("*") if path.suffix == ".pyc" or path.name == "__pycache__"]
