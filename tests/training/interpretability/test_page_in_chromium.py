"""The page in a real browser, as a person uses it: with a mouse, a finger, the keyboard, on paper."""

import re

import numpy as np
import pytest

from tests.browser import browser, luminance
from tests.run_cases import make_run
from training.interpretability.page import look, show
from training.interpretability.page.look import AttentionMaps, Circuits, LogitParts, Look, PatchEffects, Prediction
from training.runs.trained_model import load_run

pytestmark = pytest.mark.end_to_end
CHOSEN = "return document.querySelector('.strip [aria-current=true]').dataset.i"
COLORS = "return [...document.querySelectorAll('.strip[data-text] .token')].map((t) => t.style.backgroundColor)"
OVERFLOW = "return document.documentElement.scrollWidth - innerWidth"
COUNTER = """
    const [counter, button] = ["#chosen-token span", "#forth"].map((of) => document.querySelector(of));
    const [a, b] = [counter, button].map((of) => of.getBoundingClientRect());
    return [counter.textContent, counter.scrollWidth <= a.width + 1 && a.right <= b.left];
"""
SPOKEN = "return document.getElementById('readout').textContent"


@pytest.fixture(scope="module")
def chromium():
    with browser() as session:
        yield session


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return look(load_run(make_run(tmp_path_factory.mktemp("runs") / "d", "d", L=3)), "abcabca d", against="abcadca d")


@pytest.fixture(scope="module")
def page(found, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(found.html(), "utf-8")
    return path


@pytest.fixture
def opened(chromium, page):
    chromium.emulate(1280, 900)
    chromium.open(page)
    yield chromium
    assert chromium.complaints() == []


def large():
    """30 × 9 heads over 200 tokens, of numbers that compress badly."""
    rng = np.random.default_rng(0)
    L, H, l = 30, 9, 200
    A = np.tril(rng.gamma(0.1, size=(L, H, l, l))) + 1e-9
    A = np.tril(A / np.tril(A).sum(-1, keepdims=True)).astype(np.float32)
    p = np.sort(rng.dirichlet(np.ones(9), (L + 1, l)), -1)[..., :3:-1]
    tokens = rng.integers(0, 30_000, (L + 1, l, 5))
    words = {int(v): f"·word{v}" for v in np.unique(tokens)}
    prediction = Prediction("prompt", [f"layer {l}" for l in range(L + 1)], tokens, p, p[..., 0], p[0, :, 0], "")
    text = [f"·{'w' * (1 + i % 9)}{i}" for i in range(l)]
    written = LogitParts(rng.normal(size=(L, H, l)), rng.normal(size=(L, l)), rng.normal(size=l), np.zeros(l))
    patched = PatchEffects(
        text, rng.normal(size=(L, l)), rng.normal(size=(L, H)), "log P", (1.0, 0.0), is_estimate=True
    )
    scores = dict.fromkeys(("previous token", "duplicate token", "induction", "copying"), rng.uniform(size=(L, H)))
    composition = {letter: rng.uniform(size=(L, H, L, H)) for letter in "QKV"}
    attention = [AttentionMaps("Attention", "prompt", "prompt", A)]
    circuits = Circuits(scores, composition, "")
    return Look("large", ["decoder"], {"prompt": text}, words, attention, prediction, written, patched, circuits)


def expected_readout(found, layer, head, token):
    """The tokens that one attends to most, as the page says it."""
    texts, A = found.texts["prompt"], found.attention[0].A[layer, head, token]
    best = int(A.argmax())
    return f"{texts[token]} (token {token}) attends to {texts[best]} ({best}) {A[best]:.3f}"


def now(session):
    return tuple(int(session.run(f"return document.getElementById('{name}').value")) for name in ("layer", "head"))


def close(said, expected):
    """Whether a sentence begins as expected, its number within 1/255."""
    words, number = expected.rsplit(" ", 1)
    return (
        said.startswith(words + " ") and abs(float(said[len(words) :].split()[0].strip(",.")) - float(number)) < 1 / 255
    )


def test_hovering_shows_what_a_token_attends_to_and_leaving_goes_back(opened, found):
    before = opened.run(COLORS)
    opened.pointer(".strip [data-i='4']")
    assert opened.run(CHOSEN) == "4"
    assert close(opened.run(SPOKEN), expected_readout(found, *now(opened), 4))
    assert opened.run(COLORS) != before
    weight = found.attention[0].A[(*now(opened), 9, 4)]
    said = opened.run("return document.getElementById('tip').textContent")
    assert close(said, f"“a” (token 4) is attended to by “d” (9): {weight:.3f}")
    opened.pointer("h1")
    assert opened.run(COLORS) == before
    assert opened.run("return document.getElementById('tip').hidden") is True


def test_a_click_stays_and_changes_the_other_sections(opened, found):
    opened.pointer(".strip [data-i='3']", press=True)
    opened.pointer("h1")
    assert opened.run(CHOSEN) == "3"
    caption = opened.run("return document.querySelector('.answers caption').textContent")
    assert caption.startswith("After c (token 3)The text continues with a, which the model gives ")
    answer = found.words[int(found.prediction.tokens[-1, 3, 0])]
    assert f"the answer is {answer}, whose logit" in opened.run(
        "return document.getElementById('written-lead').textContent"
    )


def test_the_keyboard_moves_through_tokens_layers_and_heads(opened, found):
    opened.run("document.querySelector('.strip [tabindex=\"0\"]').focus()")
    layer, head = now(opened)
    opened.press("Left", "Left")
    assert opened.run("return document.activeElement.dataset.i") == opened.run(CHOSEN) == "7"
    assert opened.run("return document.getElementById('tip').hidden") is True  # it would cover the sentence
    opened.press("Up" if layer else "Down", "[" if head else "]")
    moved = (layer - 1 if layer else 1, head - 1 if head else 1)
    assert now(opened) == moved
    assert close(opened.run(SPOKEN), expected_readout(found, *moved, 7))
    assert opened.run("return document.querySelectorAll('.strip [tabindex=\"0\"]').length") == 1


def test_the_heads_are_a_grid_with_one_stop_for_the_keyboard(opened):
    stops = "return [...document.querySelectorAll('#heads [tabindex=\"0\"]')].length"
    assert opened.run(stops) == 1
    opened.run("document.querySelector('#heads [tabindex=\"0\"]').focus()")
    layer, head = now(opened)
    opened.press("Down" if layer < 2 else "Up")
    assert now(opened) == (layer + 1 if layer < 2 else 1, head)
    assert opened.run("return document.activeElement.dataset.layer") == str(now(opened)[0])
    assert opened.run(stops) == 1


def test_the_other_direction(opened, found):
    opened.pointer("[value=by]", press=True)
    opened.pointer(".strip [data-i='1']", press=True)
    A = found.attention[0].A[(*now(opened), slice(None), 1)]
    said = opened.run(SPOKEN)
    assert said.startswith(f"a (token 1) is attended to by {found.texts['prompt'][A.argmax()]} ({A.argmax()}) ")


def test_a_tap_on_a_phone(chromium, page, found):
    chromium.emulate(390, 844, mobile=True)
    chromium.open(page)
    assert chromium.run(OVERFLOW) <= 0
    chromium.run("document.querySelector('.strip [data-i=\"5\"]').scrollIntoView({block: 'center'})")
    chromium.pointer(".strip [data-i='5']", "touch", press=True)
    assert chromium.run(CHOSEN) == "5"
    assert close(chromium.run(SPOKEN), expected_readout(found, *now(chromium), 5))
    assert chromium.complaints() == []


@pytest.mark.parametrize("dark", [False, True])
def test_text_on_colors_has_contrast(chromium, page, dark):
    chromium.emulate(1280, 900, dark=dark)
    chromium.open(page)
    pairs = chromium.run("""
        const color = (e) => getComputedStyle(e).backgroundColor;
        const ground = (e) => (color(e) === "rgba(0, 0, 0, 0)" ? ground(e.parentElement) : color(e));
        const written = [...document.querySelectorAll(".token, td, p, h2, th, button, small, summary")];
        const seen = written.filter((e) => e.textContent.trim());
        return seen.map((e) => [getComputedStyle(e).color, ground(e)]);
    """)
    assert len({ground for _, ground in pairs}) > 40
    for pair in {tuple(pair) for pair in pairs}:
        a, b = sorted(luminance([int(n) / 255 for n in re.findall(r"\d+", color)[:3]]) for color in pair)
        assert (b + 0.05) / (a + 0.05) >= 4.5, pair
    ground = chromium.run("return getComputedStyle(document.body).backgroundColor")
    assert (luminance([int(n) / 255 for n in re.findall(r"\d+", ground)]) < 0.1) == dark


def test_elements_have_names(opened):
    nameless = opened.run("""
        const all = document.querySelectorAll("button, select, canvas[role=img], [role=region], [role=gridcell]");
        const named = (e) => e.getAttribute("aria-label") || e.textContent.trim() || e.labels?.length;
        return [...all].filter((e) => !named(e)).map((e) => e.outerHTML);
    """)
    assert nameless == []
    assert opened.run("return [...document.querySelectorAll('th')].every((th) => th.scope)")
    levels = opened.run("return [...document.querySelectorAll('h1, h2, h3, h4')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert opened.run("return document.querySelectorAll('main').length") == 1


def test_thirty_by_nine_heads_over_two_hundred_tokens(chromium, tmp_path):
    page = large().html()
    assert len(page.encode()) < 5_000_000
    path = tmp_path / "large.html"
    path.write_text(page, "utf-8")
    for width, mobile in ((1280, False), (390, True)):
        chromium.emulate(width, 844, mobile=mobile)
        chromium.open(path)
        assert chromium.run(OVERFLOW) <= 0
        assert chromium.run(COUNTER) == ["199/199", True]
        width_of_head = chromium.run("return document.querySelector('#heads td').getBoundingClientRect().width")
        assert width_of_head >= 24
        assert chromium.run("return document.querySelectorAll('#heads canvas').length") == 270
        assert chromium.run(
            "return [...document.querySelectorAll('.several .wide')].every((e) => e.scrollWidth <= e.clientWidth)"
        )
    pdf = chromium.printed()
    assert pdf.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 15
    assert chromium.complaints() == []


def test_a_notebook_shows_what_was_recorded(chromium, found, tmp_path):
    """The page in a frame of another one, with attention alone."""
    seen = {"A": found.attention[0].A.swapaxes(2, 3)}
    path = tmp_path / "notebook.html"
    done = "<script>document.querySelector('iframe').onload = () => { document.documentElement.dataset.ready = 'true' }"
    path.write_text(f"<!doctype html>{show(seen, found.texts['prompt'])._repr_html_()}{done}</script>", "utf-8")
    chromium.emulate(1280, 1000)
    chromium.open(path)
    inside = "return document.querySelector('iframe').contentDocument."
    chromium.wait(inside + "documentElement.dataset.ready === 'true'")
    assert chromium.run(inside + "querySelectorAll('#heads canvas').length") == 3 * 2
    shown = "const d = document.querySelector('iframe').contentDocument; "
    shown += "return [...d.querySelectorAll('section')].filter((s) => s.offsetHeight).map((s) => s.id)"
    assert chromium.run(shown) == ["attention"]
    chromium.run(inside + "querySelector(\".strip [data-i='3']\").click()")
    said = chromium.run(inside + "getElementById('readout').textContent")
    assert close(said, expected_readout(found, 0, 0, 3))
    assert chromium.complaints() == []


def test_a_page_whose_numbers_are_damaged_says_so(chromium, page, tmp_path):
    damaged = tmp_path / "damaged.html"
    text = re.sub(r'(id="numbers">)....', r"\1AAAA", page.read_text("utf-8"))
    damaged.write_text(text, "utf-8")
    chromium._send("POST", "/url", {"url": damaged.as_uri()})
    chromium.wait("return !document.getElementById('problem').hidden")
    assert chromium.run("return document.getElementById('problem').textContent")
    assert chromium.complaints()


@pytest.mark.parametrize("task", ["e", "ed", "classify"])
def test_the_pages_of_other_models(chromium, tmp_path, task):
    path = tmp_path / "page.html"
    path.write_text(look(load_run(make_run(tmp_path / task, task)), "abc def").html(), "utf-8")
    chromium.emulate(1280, 900)
    chromium.open(path)
    assert "no head has a separate part" in chromium.run("return document.getElementById('written').textContent")
    if task == "ed":
        chromium.run("const s = document.getElementById('block'); s.value = '2'; s.dispatchEvent(new Event('change'))")
        strips = chromium.run("return [...document.querySelectorAll('.strip[data-text]')].map((s) => s.dataset.text)")
        assert strips == ["answer", "prompt"]
    assert chromium.complaints() == []
