"""The overlap of held-out with training text, against a search for every window in every text."""

import numpy as np
import pytest

from training.data import overlap
from training.data.overlap import WIDTH, Overlap


def searched(held_out, training):
    windows = [text[i : i + WIDTH] for text in held_out for i in range(0, len(text) - WIDTH + 1, WIDTH)]
    return np.mean([any(window in text for text in training) for window in windows])


@pytest.fixture
def words():
    rng = np.random.default_rng(0)
    return lambda n: " ".join(
        rng.choice(["the", "caf\u00e9", "\u65e5\u672c", "\U0001f642", "of", "a", "when", "\n\nit"], n)
    )


def test_the_share_is_that_of_windows_that_occur_at_any_offset(words):
    common, other = words(400), words(700)
    held_out = [common[7:900], words(300), "short", other[:130]]
    training = [words(50) + common, "short", words(900), other[3:64] + words(9)]
    found = Overlap(held_out)
    for text in training:
        found.look_in(text)
    assert found.share == searched(held_out, training)
    assert 0.2 < found.share < 0.7


def test_blocks_hide_nothing(monkeypatch, words):
    """A multiple of the width, so that windows begin where they would in one block."""
    monkeypatch.setattr(overlap, "BLOCK", 2 * WIDTH)
    text = words(2000)
    found = Overlap([text[333:], words(200)])
    found.look_in(text)
    assert found.share == searched([text[333:]], [text]) * (len(text[333:]) // WIDTH) / found._counts.sum()


def test_many_windows_are_sampled(monkeypatch, words):
    monkeypatch.setattr(overlap, "MOST", 40)
    text = words(4000)
    found = Overlap([text, words(4000)])
    found.look_in(text)
    assert 30 <= found._counts.sum() <= 40
    assert abs(found.share - 0.5) < 0.1


def test_texts_shorter_than_a_window_have_no_overlap():
    found = Overlap(["a" * (WIDTH - 1), ""])
    found.look_in("a" * 500)
    assert found.share is None
