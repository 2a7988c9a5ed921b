"""scripts/loss_curve.py: the picture that the README shows."""

import json
import re

from training.commands import loss_curve_main


def test_the_losses_of_a_run_are_drawn(tmp_path, capsys):
    """A point of the curve for each step that has a loss, in the order of the steps."""
    lines = [{"step": step, "loss": 9.0 - step} for step in range(1, 6)]
    lines[3]["validation_loss"] = 5.5
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert loss_curve_main([str(tmp_path), str(tmp_path / "a.svg")]) == 0
    picture = (tmp_path / "a.svg").read_text()
    curves = re.findall(r'<path d="M ([^"]+)" clip-path[^>]* style="fill: none; stroke: #1f77b4', picture)
    points = [tuple(map(float, point.split())) for point in curves[0].replace("L", "").strip().splitlines()]
    assert len(points) == 5
    assert points == sorted(points)  # the y axis points down: the loss falls
    assert loss_curve_main([str(tmp_path), str(tmp_path / "a.what")]) == 2
    assert capsys.readouterr().err.startswith("loss_curve.py: Format 'what' is not supported")


def test_the_losses_of_runs_are_compared(tmp_path, capsys):
    """Both curves over the steps, and the slower one twice as wide over the seconds."""
    for name, seconds in (("fast", 1), ("slow", 2)):
        (tmp_path / name).mkdir()
        lines = [{"step": step, "loss": 9.0 - step, "seconds": seconds * step} for step in range(1, 6)]
        (tmp_path / name / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    runs = [str(tmp_path / "fast"), str(tmp_path / "slow")]
    assert loss_curve_main([*runs, str(tmp_path / "a.svg")]) == 0
    picture = (tmp_path / "a.svg").read_text()
    widths = []
    for color in ("#1f77b4", "#ff7f0e"):
        curves = re.findall(rf'<path d="M ([^"]+)" clip-path[^>]* style="fill: none; stroke: {color}', picture)
        for curve in curves[1::2]:  # the smoothed ones
            x = [float(point.split()[0]) for point in curve.replace("L", "").strip().splitlines()]
            widths.append(x[-1] - x[0])
    fast_steps, fast_seconds, slow_steps, slow_seconds = widths
    assert abs(fast_steps - slow_steps) < 1e-3
    assert abs(slow_seconds - 2 * fast_seconds) < 1e-3
    assert loss_curve_main([runs[0], runs[0], str(tmp_path / "b.svg")]) == 2
    assert "expected runs of different names" in capsys.readouterr().err


def test_without_steps_there_is_nothing_to_draw(tmp_path, capsys):
    assert loss_curve_main([str(tmp_path / "none"), str(tmp_path / "a.svg")]) == 2
    assert "expected metrics of at least one step, got none; train the run first" in capsys.readouterr().err
    assert not (tmp_path / "a.svg").exists()
