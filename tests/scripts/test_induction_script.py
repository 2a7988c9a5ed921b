"""scripts/induction.py: what it prints and draws."""

import re

import numpy as np
import pytest

from tests.run_cases import make_run
from training.interpretability import induction

pytestmark = pytest.mark.usefixtures("x32")


def test_a_run_without_induction_heads(tmp_path, called):
    status, out, err = called("induction", make_run(tmp_path / "d", "d"), "--out", tmp_path / "a.png")
    assert (status, "no induction heads: the largest score is 0." in out) == (0, True)
    assert "reading 4 sequences of 19 random tokens twice" in err


def test_heads_are_named_with_what_the_loss_is_without_them(tmp_path, printed, monkeypatch):
    monkeypatch.setattr(induction, "induction_heads", lambda scores, least: np.array([[1, 0]]))
    out = printed("induction", make_run(tmp_path / "d", "d"), "--out", tmp_path / "a.svg")
    alone = re.search(r"^ +\(1, 0\) +\d\.\d\d +(\d+\.\d\d)$", out, re.M)
    together = re.search(r"^without all 1 of them: (\d+\.\d\d)$", out, re.M)
    assert alone
    assert together
    assert alone[1] == together[1]
    assert re.search(r"^without 1 others of the same layers, drawn 5 times: (\d+\.\d\d) to \1$", out, re.M)
