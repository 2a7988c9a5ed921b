"""The page in a real browser, as a person uses it: with a mouse, a finger, the keyboard, on paper."""

import re

import pytest

from tests.browser import browser, luminance
from tests.run_cases import make_run
from training.interpretability.page import look, show
from training.runs.trained_model import load_run

pytestmark = pytest.mark.end_to_end
CHOSEN = "return document.querySelector('.strip [aria-current=true]').dataset.i"
COLORS = "return [...document.querySelectorAll('.strip[data-text] .token')].map((t) => t.style.backgroundColor)"
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
