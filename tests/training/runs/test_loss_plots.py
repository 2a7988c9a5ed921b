"""The picture of a training's losses: means of neighbors when they are many, and the same cost of each drawing."""

import re

import numpy as np

from training.runs.loss_plots import POINTS, Losses, smoothed


def test_many_points_become_the_means_of_as_many_neighbors():
    values = np.random.default_rng(1).uniform(0, 9, 20 * POINTS + 3)
    for n, each in ((POINTS, 1), (len(values), 21)):
        steps, drawn = Losses({"step": i, "loss": value} for i, value in enumerate(values[:n])).curve("loss")
        assert len(steps) == -(-n // each) <= POINTS
        groups = [range(i, min(i + each, n)) for i in range(0, n, each)]
        np.testing.assert_allclose(drawn, [values[group].mean() for group in groups])
        np.testing.assert_allclose(steps, [np.mean(group) for group in groups])
    assert not Losses().curve("loss")


def test_a_smoothed_loss_is_the_mean_of_its_neighbors():
    values = np.random.default_rng(2).uniform(0, 9, 517)
    expected = [np.mean(values[max(i - 5, 0) : i + 6]) for i in range(517)]
    np.testing.assert_allclose(smoothed(values), expected)


def test_lines_of_the_metrics_are_training_and_validation(tmp_path):
    losses = Losses([{"step": 1, "loss": 2.5}, {"step": 2, "loss": 2.0, "validation_loss": 2.25}])
    losses.add({"step": 3, "validation_loss": 2.125})
    np.testing.assert_array_equal(losses.curve("loss"), [[1, 2], [2.5, 2.0]])
    np.testing.assert_array_equal(losses.curve("validation_loss"), [[2, 3], [2.25, 2.125]])


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
