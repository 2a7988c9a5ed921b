"""What a person who waits reads: rates that do not jump, and a bar that keeps what matters where there is no room."""

import io
import sys
import time

import pytest

from tests.training_cases import settings_for
from training.command_line import terminal
from training.command_line.progress import Display, Pace
from training.loop.trainer import Facts

FACTS = Facts(step=0, parameters=9, trained=9, tokens=99, epochs=1.0, device="cpu", evaluating=70.0)


def lines(steps, *, tokens=100.0, seconds=0.5):
    """Updates of a constant pace, the results of two of which come at once: the second seems to take no time."""
    passed = 0.0
    for step in range(1, steps + 1):
        took = 2 * seconds - 1e-4 if step % 2 else 1e-4
        passed += took
        yield step, {"step": step, "loss": 2.5, "tokens_per_second": tokens / took, "seconds": passed}


def test_rates_are_smooth_and_the_time_left_is_that_of_the_updates():
    pace, rates, left = Pace(), [], []
    for step, line in lines(200):
        pace.add(step, line)
        rates.append(pace.tokens_per_second())
        left.append(pace.left(200))
    assert rates[0] is left[0] is None
    assert max(rates[10:]) < 1.2 * 200
    assert min(rates[10:]) > 200 / 1.2
    assert left[99] == pytest.approx(100 * 0.5, rel=0.1)
    assert left[-1] == 0


def test_a_pace_that_changes_is_followed():
    pace = Pace()
    for step in range(1, 41):
        pace.add(step, {"tokens_per_second": 100.0 if step <= 20 else 10.0, "seconds": float(step)})
    assert pace.tokens_per_second() == pytest.approx(10)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(monkeypatch, columns, task="d"):
    monkeypatch.setattr(sys, "stderr", Terminal())
    display = Display(settings_for(task, steps=200), quiet=False)
    display.began(FACTS)
    display._bar.mininterval, display._bar.dynamic_ncols, display._bar.ncols = 0, None, columns
    for step, line in lines(50):
        display.updated(step, line)
    display._bar.refresh()
    last = sys.stderr.getvalue().split("\r")[-1].rstrip()
    display.close()
    return last


def test_a_narrow_bar_keeps_percentage_and_time(monkeypatch):
    narrow, wide = shown(monkeypatch, 40), shown(monkeypatch, 100)
    assert len(narrow) <= 40
    assert narrow.startswith(" 25% 01:15 left |")
    assert wide.endswith(" 50/200, loss 2.500, 200 tokens/s")


def test_an_evaluation_that_takes_long_shows_how_far_it_is(monkeypatch, capsys):
    seconds = iter(range(100))
    monkeypatch.setattr(terminal.time, "monotonic", lambda: float(next(seconds)))
    display = Display(settings_for("d", steps=200), quiet=False)
    for _ in range(12):  # batches of a second each
        display.evaluating(12)
    display.close()
    said = [line.split("evaluating: ")[1] for line in capsys.readouterr().err.splitlines()]
    assert said == ["5 of 12, 00:07 left", "10 of 12, 00:02 left"]


def test_the_time_left_is_measured_in_the_first_steps(capsys):
    display = Display(settings_for("d", steps=200), quiet=False)
    display.began(FACTS)
    for step, line in lines(30):
        display.updated(step, line)
    said = [line for line in capsys.readouterr().err.splitlines() if "left" in line]
    assert said == ["about 3 minutes left on this machine, by the first 11 steps"]  # 189 · 0.5 s, and 70 s


@pytest.mark.parametrize("quiet", [False, True])
def test_what_takes_long_is_shown(capsys, monkeypatch, quiet):
    monkeypatch.setattr(terminal.waiting.__wrapped__, "__kwdefaults__", {"after": 0.01, "lines": False})
    display = Display(settings_for("d", steps=200), quiet=quiet)
    with display.waiting("compiling"):
        time.sleep(0.1)
    said = capsys.readouterr().err.splitlines()
    assert bool(said) == (not quiet)
    assert all(line.endswith("compiling, 00:00") for line in said)
    assert len(said) <= 4  # after 0.01, 0.02, 0.04 and 0.08 seconds


@pytest.mark.parametrize(("rate", "shown"), [(0.0625, "0.062"), (4.0, "4"), (1234.5, "1,234")])
def test_a_slow_rate_is_not_0(capsys, rate, shown):
    display = Display(settings_for("d", steps=3), quiet=False)
    for step in (1, 2, 3):
        display.updated(step, {"loss": 2.5, "tokens_per_second": rate, "seconds": float(step)})
    assert capsys.readouterr().err.rstrip().endswith(f", {shown} tokens/s")


def test_a_validation_loss_is_said_once_and_data_that_are_read_too_often_are_named(capsys):
    display = Display(settings_for("d", steps=40), quiet=False)
    display.began(FACTS._replace(epochs=1333.0))
    assert "warning: the data are read 1,333 times" in capsys.readouterr().err
    for step, line in lines(6):
        if step == 3:
            display.evaluated(step, {"loss": 2.25}, None)
        display.updated(step, line)
    said = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0].split()[-1] for line in said if "validation 2.250" in line] == ["3", "4/40"]
    display.began(FACTS)
    assert "warning" not in capsys.readouterr().err
