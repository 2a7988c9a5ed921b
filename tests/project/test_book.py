"""The book of the cross-check, in a real browser: every algorithm and line is there, and nothing errors."""

import dataclasses
import html.parser
import itertools
import json
import re
import shutil

import pytest
from PIL import Image

import algorithms
from tests.browser import luminance
from training.commands.crosscheck import ROOT, main
from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.book import write_book
from training.crosscheck.book.mathml import sentence
from training.crosscheck.comparison import compare
from training.crosscheck.latex import latex_of
from training.crosscheck.scenarios import Scenarios
from training.crosscheck.variants import VariantScenarios, compare_variant

pytestmark = pytest.mark.end_to_end
SAMPLE = (1, 4, 6, 10)
VARIANTS = ("LLAMA", "BERT")


@dataclasses.dataclass
class Page(html.parser.HTMLParser):
    """What a page consists of."""

    text: str

    def __post_init__(self):
        super().__init__()
        self.tags, self.ids, self.links, self.words = [], [], [], []
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "a":
            self.links.append(attributes["href"])

    def handle_data(self, data):
        self.words.append(data)


def write(folder, numbers, variants=()):
    settings = {"seed": 0, "implementation": "paper"}
    scenarios = Scenarios(algorithms, sizes={"L": 2, "B": 2}, **settings)
    every = [compare(scenarios, ROOT, numbers)]
    every += [compare_variant(VariantScenarios(algorithms, name, sizes={}, **settings), ROOT) for name in variants]
    return write_book(every, folder, ROOT).parent


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    return write(tmp_path_factory.mktemp("book"), SAMPLE, VARIANTS)


@pytest.fixture(scope="module")
def pages(book):
    return {path.name: Page(path.read_text("utf-8")) for path in book.glob("*.html")}


def requested_by_pages(log):
    """What pages asked for; the browser's own requests, for its updates and accounts, come from no page."""
    events = [event.get("params", {}) for event in json.loads(log.read_text("utf-8"))["events"]]
    return {params["url"] for params in events if params.get("initiator", "not an origin") != "not an origin"}


def open_all(book, browser, folder, numbers):
    """Open every page about an algorithm and the index; returns them as the browser understands them."""
    pages = {}
    models = [path.name for path in book.glob("model-*")]
    for name in ("index.html", *(f"algorithm-{n}.html" for n in numbers), *models):
        log = folder / "net.json"
        options = ("--dump-dom", "--enable-logging=stderr", f"--log-net-log={log}")
        done = browser((book / name).as_uri(), folder, *options)
        assert "CONSOLE" not in done.stderr, done.stderr
        foreign = {url for url in requested_by_pages(log) if not url.startswith(("file:", "data:"))}
        assert not foreign, f"{name} asks for {foreign}"
        pages[name] = Page(done.stdout)
    return pages


def check_lines(pages, numbers):
    for n in numbers:
        page = pages[f"algorithm-{n}.html"]
        for line in PSEUDOCODE[n].lines:
            sides = {f"paper-{line.number}", f"code-{line.number}"}
            assert sides <= set(page.ids)
            assert {f"#{side}" for side in sides} <= set(page.links)
        assert f"algorithm-{n}.html" in pages["index.html"].links
        assert sum(tag == "math" for tag, _ in page.tags) >= len(PSEUDOCODE[n].lines)
        assert "all equal" in " ".join(page.words)


def test_formulas_have_no_latex_left():
    lines = [line for algorithm in PSEUDOCODE.values() for line in algorithm.lines]
    shown = {line.text: re.sub("<[^>]*>", "", sentence(latex_of(line.text))) for line in lines}
    assert not [text for text, formula in shown.items() if "\\" in formula]
    assert next(formula for text, formula in shown.items() if "if ¬" in text).split(":")[1].startswith(" if ")


def test_every_line_is_there_and_nothing_errors(book, browser, tmp_path):
    pages = open_all(book, browser, tmp_path, SAMPLE)
    check_lines(pages, SAMPLE)


def test_a_line_highlights_its_counterpart(book, browser, tmp_path):
    picture = tmp_path / "page.png"
    url = f"{(book / 'algorithm-4.html').as_uri()}#paper-4"
    browser(url, tmp_path, "--window-size=1280,1400", f"--screenshot={picture}")
    with Image.open(picture) as image:
        pixels = image.convert("RGB").load()
        marked = {x < 640 for x, y in itertools.product(range(1280), range(1400)) if pixels[x, y] == (0xFB, 0xEE, 0xC2)}
    assert marked == {True, False}


WIDER_THAN_ITS_PLACE = """<script>addEventListener("load", () => {
  const wider = (e) => e.scrollWidth > e.clientWidth + 1;
  document.body.dataset.cutOff = [...document.querySelectorAll(".row, .row code, .derived")].filter(wider).length;
  document.body.dataset.rows = document.querySelectorAll(".row").length;
  document.body.dataset.sideways = wider(document.documentElement);
})</script>"""


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("name", ["model-llama.html", "algorithm-4.html", "source-layers.html"])
def test_long_lines_of_code_are_wrapped(book, browser, tmp_path, name, width):
    shutil.copy(book / "book.css", tmp_path)
    (tmp_path / name).write_text((book / name).read_text("utf-8") + WIDER_THAN_ITS_PLACE, "utf-8")
    done = browser((tmp_path / name).as_uri(), tmp_path, "--dump-dom", f"--window-size={width},900")
    found = dict(re.findall(r'data-(cut-off|rows|sideways)="(\w+)"', done.stdout))
    assert int(found["rows"]) > 10
    assert (found["cut-off"], found["sideways"]) == ("0", "false")


def test_a_model_has_its_changed_lines_beside_the_papers(pages):
    page = pages["model-llama.html"]
    text = " ".join(" ".join(page.words).split())
    assert "33 lines, 14 changed, all equal" in text
    changed = [attributes["id"] for tag, attributes in page.tags if "changed" in attributes.get("class", "").split()]
    assert len(changed) == 14
    assert {"a10-paper-5", "a4-paper-4", "a6-paper-return"} <= set(changed)
    assert "a10-paper-6" not in changed
    formulas = "".join(page.words)
    assert "layer_norm" in formulas
    assert "rms_norm" in formulas
    assert all(f"#{line}" in page.links for line in changed)
    assert "LLAMA = PAPER.but(" in formulas


def test_links_lead_somewhere(pages):
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids)), name
        for link in page.links:
            target, _, anchor = link.partition("#")
            if name.startswith("model-") and re.fullmatch(r"algorithm-\d+\.html", target) and target not in pages:
                continue  # an algorithm of the model that is outside the sample
            assert (target or name) in pages, f"{name}: {link}"
            assert not anchor or anchor in pages[target or name].ids, f"{name}: {link}"


def test_pages_are_accessible(pages):
    for tags in (page.tags for page in pages.values()):
        assert ("html", {"lang": "en"}) in tags
        assert [tag for tag, _ in tags].count("main") == 1
        levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
        assert levels[0] == 1
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
        for tag, attributes in tags:
            if tag == "th":
                assert attributes.get("scope") in ("col", "row")
            if attributes.get("role") == "region":
                assert attributes["tabindex"] == "0"
                assert attributes.get("aria-label") or attributes.get("aria-labelledby")


def test_text_has_contrast(book):
    style = (book / "book.css").read_text("utf-8")
    blocks = re.findall(r":root \{(.*?)\}", style, re.S)
    light, dark = (dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks[:2])
    for colors in (light, dark):
        for text in ("ink", "quiet", "link", "good", "bad", "keyword"):
            for ground in ("ground", "panel", "mark"):
                values = ([int(colors[name][i : i + 2], 16) / 255 for i in (1, 3, 5)] for name in (text, ground))
                a, b = sorted(map(luminance, values))
                assert (b + 0.05) / (a + 0.05) >= 4.5, (text, ground)


def test_what_the_run_found_is_told(tmp_path):
    scenarios = Scenarios(algorithms, seed=0, sizes={}, implementation="paper")
    results = compare(scenarios, ROOT, [7])
    results.lines[7, "1"].cells["p"].largest_difference = 0.25
    write_book([results], tmp_path, ROOT)
    page, index = ((tmp_path / name).read_text("utf-8") for name in ("algorithm-7.html", "index.html"))
    assert "not all equal" in page
    assert "2.5 × 10<sup>−1</sup>" in page
    assert "1 do not agree" in index
    assert "So far" not in index
    write_book([results], tmp_path, ROOT, only="algorithm-7.html")
    assert "So far, 1 algorithm, 1" in (tmp_path / "index.html").read_text("utf-8")


def test_a_book_that_was_stopped_goes_on(tmp_path, monkeypatch):
    """Page by page, and the pages are those of a book that was not."""
    of_algorithms, ran = Scenarios.runs, []

    def command(folder, stopped_at=None):
        ran.clear()

        def runs(self, n):
            if n == stopped_at:
                raise KeyboardInterrupt
            ran.append(n)
            return of_algorithms(self, n)

        monkeypatch.setattr(Scenarios, "runs", runs)
        numbers = [option for n in (1, 2, 6) for option in ("--algorithm", str(n))]
        return main(["--html", str(tmp_path / folder), *numbers, "--variant", "LLAMA", "--implementation", "paper"])

    with pytest.raises(KeyboardInterrupt):
        command("stopped", stopped_at=6)
    pages = {path.name for path in (tmp_path / "stopped").glob("*.html")}
    assert pages == {"index.html", "algorithm-1.html", "algorithm-2.html"}
    with pytest.raises(KeyboardInterrupt):
        command("stopped", stopped_at=10)
    assert ran == [6]
    assert command("stopped") == 0
    assert ran == [10, 14]
    assert command("whole") == 0
    stopped, whole = ({p.name: p.read_text("utf-8") for p in (tmp_path / d).glob("*.*")} for d in ("stopped", "whole"))
    assert stopped == whole
