"""The fuzz command names what fails, checks a case again from its number, and resumes."""

import json

import numpy as np
import pytest

from tests.fuzz import damage, runner


@pytest.fixture
def area(monkeypatch):
    """An area whose cases are noted, of which number 2 fails."""
    drawn = []

    def check(rng):
        drawn.append(rng.random())
        if len(drawn) % 5 == 3:
            raise ValueError("wrong")

    monkeypatch.setattr(runner, "AREAS", {"area": check})
    return drawn


def stopped_after(monkeypatch, n):
    times = iter([0.0] * (n + 1))
    monkeypatch.setattr(runner, "monotonic", lambda: next(times, 1e9))


def test_a_failure_is_named_with_what_shows_it_again(area, monkeypatch, capsys):
    stopped_after(monkeypatch, 4)
    assert runner.main(["--seed", "7", "--minutes", "1"]) == 1
    printed = capsys.readouterr().out
    assert "seed 7, from case 0" in printed
    assert "area 2: ValueError: wrong" in printed
    assert "python -m tests.fuzz area --seed 7 --case 2" in printed
    assert "checked 4 of area; 1 failed, area 2" in printed
    of_case_2 = area[2]
    area.clear()
    assert runner.main(["area", "--seed", "7", "--case", "2"]) == 0
    assert area == [of_case_2]


def test_a_run_resumes_after_the_last_case(area, monkeypatch, tmp_path, capsys):
    state = tmp_path / "fuzz.json"
    stopped_after(monkeypatch, 2)
    assert runner.main(["--seed", "7", "--state", str(state)]) == 0
    assert json.loads(state.read_text()) == {"seed": 7, "next": 2}
    stopped_after(monkeypatch, 1)
    runner.main(["--state", str(state)])
    assert "seed 7, from case 2" in capsys.readouterr().out
    assert len(set(area)) == 3


def test_an_unknown_area_is_refused(capsys):
    with pytest.raises(SystemExit):
        runner.main(["attentoin"])
    assert "expected areas among attention" in capsys.readouterr().err


def test_damage_changes_something_most_of_the_time():
    rng = np.random.default_rng(0)
    value = {"a": [1, 2, {"b": "c"}], "d": None, "e": 1.5}
    original = json.dumps(value)
    damaged = [json.dumps(damage.damaged_json(rng, value)) for _ in range(200)]
    assert json.dumps(value) == original
    assert sum(d != original for d in damaged) > 150
    assert len(set(damaged)) > 100
    assert len({damage.damaged_bytes(rng, original.encode()) for _ in range(100)}) > 80


@pytest.mark.slow
@pytest.mark.parametrize("area", runner.AREAS)
def test_the_first_cases_of_every_area_pass(area):
    for n in range(3):
        error = runner.failure_of(area, 0, n)
        if error is not None:
            raise error
