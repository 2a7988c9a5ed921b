"""The picture of a training's losses: means of neighbors when they are many, and the same cost of each drawing."""

import re

import numpy as np

from training.runs.loss_plots import POINTS, Curve, Losses, smoothed


def curve(values):
    found = Curve()
    for step, value in enumerate(values, start=1):
        found.add(step, value)
    return found


def test_few_points_are_drawn_as_they_are():
    values = np.random.default_rng(0).uniform(0, 9, POINTS)
    steps, drawn = curve(values).points()
    np.testing.assert_array_equal(steps, np.arange(1, POINTS + 1))
    np.testing.assert_array_equal(drawn, values)
    assert not curve([])


def test_many_points_become_the_means_of_as_many_neighbors():
    values = np.random.default_rng(1).uniform(0, 9, 20 * POINTS + 3)
    steps, drawn = curve(values).points()
    each = 32  # the power of two with which they fit
    assert POINTS / 2 <= len(steps) <= POINTS
    groups = [values[i : i + each] for i in range(0, len(values), each)]
    np.testing.assert_allclose(drawn, [group.mean() for group in groups])
    np.testing.assert_allclose(steps[:-1], np.arange(len(steps) - 1) * each + (each + 1) / 2)


def test_a_smoothed_loss_is_the_mean_of_its_neighbors():
    values = np.random.default_rng(2).uniform(0, 9, 517)
    expected = [np.mean(values[max(i - 5, 0) : i + 6]) for i in range(517)]
    np.testing.assert_allclose(smoothed(values), expected)


def test_lines_of_the_metrics_are_training_and_validation(tmp_path):
    losses = Losses([{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0, "validation_loss": 2.25}])
    losses.add({"step": 3, "validation_loss": 2.125})
    np.testing.assert_array_equal(losses._training.points(), [[1, 2], [2.5, 2.0]])
    np.testing.assert_array_equal(losses._validation.points(), [[2, 3], [2.25, 2.125]])


def test_the_losses_of_a_run_are_drawn(tmp_path):
    """A point of the curve for each step that has a loss, in the order of the steps."""
    lines = [{"step": step, "loss": 9.0 - step} for step in range(1, 6)]
    lines[3]["validation_loss"] = 5.5
    Losses(lines).plot(tmp_path / "a.svg", title="run")
    picture = (tmp_path / "a.svg").read_text()
    curves = re.findall(r'<path d="M ([^"]+)" clip-path[^>]* style="fill: none; stroke: #1f77b4', picture)
    points = [tuple(map(float, point.split())) for point in curves[0].replace("L", "").strip().splitlines()]
    assert len(points) == 5
    assert points == sorted(points)  # the y axis points down: the loss falls
