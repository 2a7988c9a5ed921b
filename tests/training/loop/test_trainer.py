"""The training loop: it learns, goes on exactly where it was, stops where it must and says why, and keeps what it
should.
"""

import json
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_training, d_transformer
from tests import cases
from tests.training_cases import TIMED, data_for, make_trainer, settings_for, untimed
from training.data.records import DataError
from training.evaluation.held_out import evaluate
from training.loop import trainer as trainer_module
from training.loop.diagnosis import TrainingError, not_finite
from training.loop.run_store import Progress
from training.runs.checkpoints import read_checkpoint
from training.runs.interrupts import Interrupted
from training.runs.metrics import read_metrics
from training.runs.named_arrays import flatten, unflatten
from training.runs.trained_model import load_run
from training.tasks.models import init_model, model_shapes

SHORT = {"rows": "chunks", "steps": 8, "eval_every": 3, "checkpoint_every": 7, "max_to_keep": 2, "learning_rate": 0.01}
PLAIN = {"rows": "chunks", "optimizer": "sgd", "schedule": "constant", "weight_decay": 0.0, "clip_norm": 0.0}


pytestmark = pytest.mark.usefixtures("as_most_callers")


def assert_same_run(directory, expected):
    assert untimed(directory / "metrics.jsonl") == untimed(expected / "metrics.jsonl")
    chex.assert_trees_all_equal(*(load_run(d).theta for d in (directory, expected)))


def checkpoint_steps(directory):
    return sorted(int(path.name) for path in (directory / "checkpoints").iterdir())


def initial(settings, config):
    """The parameters that a run begins with."""
    key = jax.random.fold_in(jax.random.key(settings.seed), 0)
    return jax.jit(lambda key: init_model(key, settings.task, config, scheme=settings.init))(key)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, as_most_callers):
    """A run with everything that has a state: dropout, an average of the parameters, Adam's moments."""
    directory = tmp_path_factory.mktemp("runs") / "undisturbed"
    settings = settings_for("d", **SHORT, dropout=0.2, ema_decay=0.9)
    trainer, witness = make_trainer(directory, settings)
    results = trainer.train()
    return directory, settings, results, witness


@pytest.mark.end_to_end
def test_every_step_and_every_evaluation_is_in_the_record(undisturbed):
    directory, _, results, witness = undisturbed
    record = read_metrics(directory / "metrics.jsonl")
    assert [line["step"] for line in record] == list(range(1, 9))
    assert [line["step"] for line in record if "validation_loss" in line] == [3, 6, 8]
    assert [line["loss"] for line in record] == list(witness.losses.values())
    assert {f"validation_{name}": value for name, value in results.items()}.items() <= record[-1].items()
    assert json.loads((directory / "results.json").read_text()) == {"step": 8, **results}
    for line in record:
        assert line["perplexity"] == pytest.approx(np.exp(line["loss"]))
        assert {"learning_rate", "gradient_norm", *TIMED} <= line.keys()
    assert checkpoint_steps(directory) == [7, 8]
    assert (directory / "loss.png").read_bytes()[1:4] == b"PNG"


@pytest.mark.end_to_end
def test_bits_per_byte_are_those_of_every_token_once(undisturbed):
    _, settings, results, _ = undisturbed
    data = data_for(settings)
    store = data.validation.source.store
    predicted = store.n_tokens - len(store)
    assert results["bits_per_byte"] == pytest.approx(results["loss"] * predicted / np.log(2) / store.n_bytes)


@pytest.mark.parametrize(
    "stop", [{"stop_at_evaluation": 6}, *(pytest.param({"stop_after": n}, marks=pytest.mark.slow) for n in (1, 5, 8))]
)
def test_an_interrupted_run_goes_on_exactly(undisturbed, tmp_path, stop):
    expected, settings, _, _ = undisturbed
    trainer, _ = make_trainer(tmp_path / "run", settings, **stop)
    with pytest.raises(Interrupted) as interrupted:
        trainer.train()
    assert interrupted.value.status == 143
    trainer, witness = make_trainer(tmp_path / "run", settings)
    trainer.train()
    assert not witness.warnings
    assert_same_run(tmp_path / "run", expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("planted", [MemoryError(), OSError(5, "Input/output error")])
def test_a_checkpoint_that_cannot_be_read_now_is_not_given_up(undisturbed, tmp_path, monkeypatch, planted):
    """A run that is begun anew would empty its metrics."""
    expected, settings, _, _ = undisturbed
    shutil.copytree(expected, tmp_path / "run")

    def restore(*_, **__):
        raise planted

    with monkeypatch.context() as patch:
        patch.setattr("orbax.checkpoint.Checkpointer.restore", restore)
        says = "cannot read the last checkpoint in .*: Input/output error; nothing was changed: rerun"
        memory = isinstance(planted, MemoryError)
        with pytest.raises(MemoryError if memory else TrainingError, match=None if memory else says):
            make_trainer(tmp_path / "run", settings)[0].train()
    assert checkpoint_steps(tmp_path / "run") == [7, 8]
    trainer, witness = make_trainer(tmp_path / "run", settings)
    trainer.train()
    assert not witness.losses
    assert_same_run(tmp_path / "run", expected)


def test_a_complete_run_is_not_trained_again(undisturbed):
    directory, settings, results, _ = undisturbed
    before = (directory / "metrics.jsonl").read_bytes()
    trainer, witness = make_trainer(directory, settings)
    assert trainer.train() == results
    assert not witness.losses
    assert (directory / "metrics.jsonl").read_bytes() == before


@pytest.mark.end_to_end
def test_a_full_disk_stops_the_run_and_it_goes_on(undisturbed, tmp_path, monkeypatch):
    expected, settings, _, _ = undisturbed
    trainer, _ = make_trainer(tmp_path / "run", settings)

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("training.runs.metrics.MetricsLog.append", full)
        with pytest.raises(TrainingError, match=r"cannot write to .*: No space left on device; make room, and rerun"):
            trainer.train()
    trainer, _ = make_trainer(tmp_path / "run", settings)
    trainer.train()
    assert_same_run(tmp_path / "run", expected)


@pytest.mark.slow
def test_it_is_the_papers_gradient_descent(tmp_path):
    settings = settings_for("d", batch_size=1, steps=2, learning_rate=0.05, **PLAIN | {"rows": "windows"})
    trainer, _ = make_trainer(tmp_path / "run", settings)
    trainer.train()
    run = load_run(tmp_path / "run")
    theta = initial(settings, run.config)
    for step in range(2):
        x = data_for(settings).train.batch(step)["x"]  # windows are full, but for the last one
        theta = d_training(jnp.asarray(x), theta, N_epochs=1, eta=0.05 / (settings.l_max - 1))
    chex.assert_trees_all_close(run.theta, theta, rtol=1e-4, atol=1e-6)


def test_the_average_forgets_by_its_decay(undisturbed):
    directory, _, _, _ = undisturbed
    template = model_shapes("d", load_run(directory).config)
    items = {"params": template, "ema": template}
    before, after = (read_checkpoint(directory / "checkpoints", step, items) for step in (7, 8))
    decay = min(0.9, (1 + 7) / (10 + 7))
    expected = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, before.trees["ema"], after.trees["params"])
    chex.assert_trees_all_close(load_run(directory).theta, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.end_to_end
def test_training_stops_early_and_keeps_the_best(tmp_path):
    often = {"steps": 60, "eval_every": 4, "patience": 2, "learning_rate": 0.05}
    settings = settings_for("d", **PLAIN | {"optimizer": "adam", "clip_norm": 1.0} | often)
    trainer, _ = make_trainer(tmp_path / "run", settings)
    results = trainer.train()
    record = [line for line in untimed(tmp_path / "run" / "metrics.jsonl") if "validation_loss" in line]
    losses = [line["validation_loss"] for line in record]
    best = int(np.argmin(losses))
    assert len(losses) == best + 3
    assert results["loss"] == pytest.approx(losses[best])
    assert json.loads((tmp_path / "run" / "results.json").read_text())["step"] == record[best]["step"]
    again, witness = make_trainer(tmp_path / "run", settings)
    assert again.train() == results
    assert not witness.losses


def held_out_loss(settings, theta, sample):
    """The mean loss of the held-out batches, by the printed lines."""
    nats = weight = 0.0
    for batch in data_for(settings).validation.evaluation_batches(sample=sample):
        within = np.arange(1, batch["x"].shape[1]) < batch["length"][:, None]
        P = np.asarray(d_transformer(batch["x"], theta, implementation="paper"), np.float64)[..., :-1]
        of_next = np.take_along_axis(P, np.maximum(batch["x"], 0)[None, :, 1:], axis=0)[0]
        nats, weight = nats - np.log(of_next[within]).sum(), weight + within.sum()
    return nats / weight


@pytest.mark.end_to_end
@pytest.mark.parametrize("patience", [0, 9])
def test_only_losses_on_the_same_held_out_data_are_compared(tmp_path, patience):
    """The last evaluation, too, is on the sample; the results are those of all held-out data."""
    often = {"steps": 11, "eval_every": 3, "patience": patience, "eval_batches": 1, "checkpoint_every": 4}
    settings = settings_for("d", **PLAIN | {"optimizer": "adam", "learning_rate": 0.4} | often)
    trainer, _ = make_trainer(tmp_path / "run", settings)
    results = trainer.train()
    record = {line["step"]: line for line in untimed(tmp_path / "run" / "metrics.jsonl") if "validation_loss" in line}
    losses = {step: line["validation_loss"] for step, line in record.items()}
    assert list(losses) == [3, 6, 9, 11]
    template = model_shapes("d", load_run(tmp_path / "run").config)
    last = read_checkpoint(tmp_path / "run" / "checkpoints", 11, {"params": template}).trees["params"]
    assert losses[11] == pytest.approx(held_out_loss(settings, last, 1), rel=1e-5)
    best = min(losses, key=losses.__getitem__) if patience else 11
    assert json.loads((tmp_path / "run" / "results.json").read_text()) == {"step": best, **results}
    assert results["loss"] == pytest.approx(held_out_loss(settings, load_run(tmp_path / "run").theta, 0), rel=1e-5)
    assert results["loss"] != pytest.approx(losses[best], rel=1e-3)

    stopped, _ = make_trainer(tmp_path / "stopped", settings, stop_after=7)
    with pytest.raises(Interrupted):
        stopped.train()
    assert make_trainer(tmp_path / "stopped", settings)[0].train() == results
    assert_same_run(tmp_path / "stopped", tmp_path / "run")


def test_held_out_data_without_tokens_to_predict_are_refused_before_the_first_step(tmp_path):
    for p_mask, eval_batches in ((1e-9, 0), (0.05, 1)):  # the latter masks one token, which is not in the sample
        settings = settings_for("e", p_mask=p_mask, eval_batches=eval_batches, batch_size=1)
        with pytest.raises(DataError, match="the held-out data: expected tokens to predict, got none"):
            make_trainer(tmp_path / str(p_mask), settings)
    make_trainer(tmp_path / "all", settings_for("e", p_mask=0.05, eval_batches=0, batch_size=1))
    with pytest.raises(DataError, match="the held-out data: expected tokens to predict, got none"):
        evaluate(lambda *_: (0.0, 0.0, 0.0), None, [{}])


@pytest.mark.end_to_end
def test_losses_that_are_not_finite_keep_the_last_parameters_and_are_valid_json(tmp_path, monkeypatch):
    monkeypatch.setattr(
        trainer_module, "evaluate", lambda *_, **options: {"loss": float("nan"), "perplexity": float("inf")}
    )
    trainer, _ = make_trainer(tmp_path / "run", settings_for("d", **PLAIN, steps=3, eval_every=1, patience=5))
    trainer.train()
    text = (tmp_path / "run" / "results.json").read_text()
    assert json.loads(text, parse_constant=pytest.fail) == {"step": 3, "loss": "nan", "perplexity": "inf"}
    assert load_run(tmp_path / "run").theta.W_e.shape == (8, 17)


@pytest.mark.end_to_end
def test_a_loss_that_is_not_finite_stops_the_run_and_says_where(tmp_path):
    often = {"checkpoint_every": 1, "eval_every": 100}
    settings = settings_for("d", **PLAIN, **often, steps=9, learning_rate=1e30, explosion=1e30)
    trainer, _ = make_trainer(tmp_path / "run", settings)
    with pytest.raises(TrainingError) as error:
        trainer.train()
    message = str(error.value)
    assert message.startswith("step 2: the loss is ")
    assert "the gradients of W_e" in message
    assert "are not finite, at learning rate" in message
    assert "the last good checkpoint is of step 1" in message
    assert (checkpoint_steps(tmp_path / "run"), len(untimed(tmp_path / "run" / "metrics.jsonl"))) == ([1], 1)


@pytest.fixture
def wrong_at(monkeypatch):
    """Let updates have a loss of 100 nats, as of a wrong label that a model is sure of."""
    updated = trainer_module._updated

    def of(*wrong):
        def with_wrong_labels(program, state, batch, step, **options):
            state, metrics = updated(program, state, batch, step, **options)
            return state, metrics._replace(loss=np.float32(100)) if step + 1 in wrong else metrics

        monkeypatch.setattr(trainer_module, "_updated", with_wrong_labels)

    return of


@pytest.mark.end_to_end
def test_a_loss_that_explodes_stops_the_run_unless_told_to_go_on(tmp_path, wrong_at):
    wrong_at(*range(7, 21))
    values = PLAIN | {"steps": 20, "learning_rate": 0.01, "checkpoint_every": 5, "eval_every": 100, "max_to_keep": 1}
    trainer, witness = make_trainer(tmp_path / "run", settings_for("d", **values))
    with pytest.raises(TrainingError, match=r"step 16: the loss is 100 nats, .* than 28.33 \(--explosion .* step 5\."):
        trainer.train()
    trainer, witness = make_trainer(tmp_path / "run", settings_for("d", **values, explosion=50.0))
    trainer.train()
    assert [*witness.losses] == [*range(6, 21)]
    assert checkpoint_steps(tmp_path / "run") == [20]


def test_single_bad_updates_of_a_sound_run_do_not_stop_it(tmp_path, wrong_at):
    """Ten times a uniform guess's loss is p = 0.001 for two classes: one wrong label of a batch of 1."""
    wrong_at(3, 4, 5, 6, 9)
    settings = settings_for("d", **PLAIN, steps=12, learning_rate=0.01, eval_every=100)
    trainer, witness = make_trainer(tmp_path / "run", settings)
    trainer.train()
    assert [step for step, loss in witness.losses.items() if loss == 100] == [3, 4, 5, 6, 9]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("steps", [3, 12, 20])
def test_a_profile_is_written_of_any_number_of_steps(tmp_path, steps):
    settings = settings_for("d", **PLAIN, steps=steps, eval_every=100, checkpoint_every=100, profile=True)
    make_trainer(tmp_path / "run", settings)[0].train()
    (trace,) = (tmp_path / "run" / "profile").rglob("*.xplane.pb")
    assert trace.stat().st_size


def test_an_evaluation_says_how_far_it_is(tmp_path):
    settings = settings_for("d", **PLAIN, steps=2, eval_every=1, eval_batches=1)
    trainer, witness = make_trainer(tmp_path / "run", settings)
    trainer.train()
    n = trainer.plan.data.validation.n_steps
    assert n > 1
    assert witness.evaluating_of == [1, 1, *[n] * n]
    assert witness.facts.evaluating == 1 + 1 + n  # the clock moves by a second at each reading


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


@pytest.mark.parametrize(
    ("config", "within", "name", "is_stacked"),
    [
        (cases.D, "", "layers.mlp.W_mlp1", True),
        (cases.D, "", "W_e", False),
        (cases.ED, "", "decoder.self_attention.heads.W_q", True),
        (cases.ED, "", "encoder.norm1.gamma", True),
        (cases.E, "encoder", "encoder.W_e", False),
        (cases.E, "encoder", "encoder.norm.gamma", False),
        (cases.E, "encoder", "encoder.layers.norm1.beta", True),
        (cases.D, "transformer", "transformer.layers.norm2.beta", True),
    ],
)
def test_the_first_layer_is_named_of_arrays_that_hold_all_layers(config, within, name, is_stacked):
    theta = cases.random_theta(config)
    theta = {within: theta, "W_c": np.zeros((3, 2))} if within else theta
    arrays = {key: np.array(array) for key, array in flatten(theta).items()}
    arrays[name][1] = np.nan
    message = str(not_finite(7, 2.5, 0.1, unflatten(theta, arrays), 5))
    assert f"the gradients of {name}{'[1]' if is_stacked else ''} are not finite" in message
    assert "the last good checkpoint is of step 5" in message
