"""Early stopping: what is noted of evaluations, and when a run ends."""

import pytest

from training.loop.store import Progress


@pytest.mark.parametrize(("patience", "expected"), [(1, 3), (2, 6), (3, 7), (0, None)])
def test_evaluations_without_a_better_loss_end_the_run(patience, expected):
    """The step at which it ends; an equal loss is not a better one."""
    progress, ended = Progress(), None
    for step, loss in enumerate((3.0, 2.0, 2.5, 1.9, 2.0, 1.9, 2.1), 1):
        progress.step = step
        best = progress.best_loss
        assert progress.note({"loss": loss}, patience) == (loss < best)
        ended = step if progress.stopped and ended is None else ended
    assert (ended, (progress.best_loss, progress.best_step, progress.worse)) == (expected, (1.9, 4, 3))
