"""Training of low-rank matrices beside frozen parameters: gradients by the chain rule, exact resume, any mesh."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from tests.cases import quick_of
from tests.training_cases import N_V, data_for, make_trainer, settings_for
from training.loop.optimizers import optimizer_from
from training.loop.train_step import batch_loss, init_state, make_step
from training.runs.checkpoints import read_checkpoint
from training.runs.directory import Description, RunDirectory, RunError
from training.runs.interrupts import Interrupted
from training.runs.named_arrays import flatten
from training.runs.trained_model import FROZEN, frozen_fingerprint, load_run
from training.settings import OPTIMIZERS, SettingsError
from training.tasks import TASKS, settings_from
from training.tasks.low_rank import LowRank, adapter_shapes, init_adapter, low_rank_of, merged
from training.tasks.models import init_model, model_config

LLAMA = {"variant": "LLAMA", "H": 4, "H_kv": 2, "d_e": 16, "d_mlp": 10, "L": 2}
LOW_RANK = {"start_from": "base", "lora_rank": 2, "lora_alpha": 3.0, "steps": 8, "eval_every": 4, "checkpoint_every": 4}


pytestmark = pytest.mark.usefixtures("as_most_callers")


@functools.cache
def arrays(config, matrices):
    """A model and an adapter of it whose B is not 0."""

    @jax.jit
    def made(of_theta, of_adapter):
        theta = init_model(of_theta, "d", config, scheme="glorot")
        return theta, init_adapter(of_adapter, theta, rank=2, matrices=matrices)

    theta, adapter = made(jax.random.key(1), jax.random.key(2))
    rng = np.random.default_rng(0)
    adapter = jax.tree.map(lambda a: np.asarray(a) + 0.3 * rng.standard_normal(a.shape, np.float32), adapter)
    return theta, jax.device_put(adapter)


def model(**values):
    settings = settings_for("d", **LLAMA, **LOW_RANK, **values)
    config = model_config(settings, N_V)
    return settings, config, *arrays(config, settings.lora_matrices)


@pytest.mark.end_to_end
def test_merged_adds_s_times_the_product_head_by_head():
    _, _, theta, adapter = model()
    both, parts = merged(theta, adapter, 1.5), adapter.layers
    for l in range(2):
        A, B = (np.asarray(a[l], np.float64) for a in parts.attention.heads.W_k)
        for h in range(2):  # of keys, which two heads share
            expected = np.asarray(theta.layers.attention.heads.W_k[l, h], np.float64) + 1.5 * B[4 * h : 4 * h + 4] @ A
            np.testing.assert_allclose(both.layers.attention.heads.W_k[l, h], expected, atol=1e-6)
        A, B = (np.asarray(a[l], np.float64) for a in parts.mlp.W_mlp2)
        expected = np.asarray(theta.layers.mlp.W_mlp2[l], np.float64) + 1.5 * B @ A
        np.testing.assert_allclose(both.layers.mlp.W_mlp2[l], expected, atol=1e-6)
    assert both.W_e is theta.W_e
    assert both.layers.norm1.gamma is theta.layers.norm1.gamma
    matrices = {"W_q", "W_k", "W_v", "W_o", "W_mlp1", "W_mlp2", "W_gate"}
    assert {path[-1].name for path in low_rank_of(adapter)} == matrices


@pytest.mark.end_to_end
@pytest.mark.parametrize("parts", [1, 2])
def test_the_gradient_is_that_of_theta_by_the_chain_rule(parts):
    """∂F/∂B = s dW Aᵀ and ∂F/∂A = s Bᵀ dW, where dW is the gradient of the whole matrix."""
    settings, _, theta, adapter = model(accumulation_steps=parts)
    batch = data_for(settings).train.batch(0)
    of_adapter = jax.jit(batch_loss(TASKS["d"].objective, settings))
    loss, gradient, _ = of_adapter(adapter, batch, np.int32(0), jax.random.key(0), theta)
    plain = settings_for("d", **LLAMA)
    of_theta = jax.jit(batch_loss(TASKS["d"].objective, plain))
    expected, dtheta, _ = of_theta(merged(theta, adapter, 1.5), batch, np.int32(0), jax.random.key(0))
    np.testing.assert_allclose(loss.nats, expected.nats, rtol=1e-6)
    found, of_matrix = low_rank_of(gradient), dict(jax.tree_util.tree_leaves_with_path(dtheta))
    for path, part in low_rank_of(adapter).items():
        A, B = (np.asarray(a, np.float64) for a in part)
        dW = np.asarray(of_matrix[path], np.float64).reshape(2, -1, A.shape[-1])
        np.testing.assert_allclose(found[path].B, 1.5 * dW @ A.swapaxes(1, 2), atol=2e-6)
        np.testing.assert_allclose(found[path].A, 1.5 * B.swapaxes(1, 2) @ dW, atol=2e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("optimizer", quick_of(["adamw", "muon"], OPTIMIZERS))
def test_an_update_changes_the_adapter_alone(optimizer):
    settings, _, theta, adapter = model(optimizer=optimizer, learning_rate=0.01)
    schedule, update = optimizer_from(settings)
    step = jax.jit(make_step(TASKS["d"].objective, update, schedule, settings))
    state = init_state(adapter, update)
    batch = data_for(settings).train.batch(0)
    new, _ = step(state, batch, np.int32(3), jax.random.key(0), theta)
    for name, before in flatten(adapter).items():
        assert np.abs(flatten(new.params)[name] - before).max() > 1e-5, name
    names = {name.rpartition(".")[2] for name in flatten(new.opt_state)}
    assert not names & {"W_e", "gamma"}  # the optimizer keeps nothing of theta


def test_defaults_follow_from_the_rank_and_weight_decay_is_of_both_factors_if_asked_for():
    settings = settings_from({"start_from": "x", "lora_rank": 8}, task="d")
    assert (settings.lora_alpha, settings.optimizer, settings.learning_rate) == (16.0, "adamw", 1e-3)
    assert settings_from({"start_from": "x"}, task="d").learning_rate == 1e-4
    settings, _, _, adapter = model()
    assert settings.weight_decay == 0
    assert all(jax.tree.leaves(alg.weight_decay_mask(adapter)))


def test_matrices_and_ranks_that_there_are_not_are_said():
    _, _, theta, _ = model()
    with pytest.raises(SettingsError, match=r"--lora-matrices: expected some of W_q, .*, got 'W_x'"):
        init_adapter(jax.random.key(0), theta, rank=2, matrices=("W_q", "W_x"))
    with pytest.raises(SettingsError, match="--lora-rank: expected at most 8, that of W_k, got 9"):
        init_adapter(jax.random.key(0), theta, rank=9)
    chosen = init_adapter(jax.random.key(0), theta, rank=9, matrices=("W_q",))
    assert [path[-1].name for path in low_rank_of(chosen)] == ["W_q"]


@pytest.fixture(scope="module")
def base(tmp_path_factory, as_most_callers):
    directory = tmp_path_factory.mktemp("runs") / "base"
    settings = settings_for("d", **LLAMA)
    files, data = RunDirectory(directory), data_for(settings)
    config = model_config(settings, N_V)
    files.note(Description(settings, config, (), data.fingerprints), data.tokenizer)
    files.save_parameters(init_model(jax.random.key(1), "d", config, scheme="glorot"))
    return directory


def trained(directory, base, stops=(), **values):
    """Train an adapter of the base; return losses and results, or None where it was stopped."""
    settings = settings_for("d", **{**LLAMA, **LOW_RANK, "start_from": str(base), **values})
    theta = load_run(base).theta
    trainer, witness = make_trainer(
        directory, settings, initial=theta, fingerprints={FROZEN: frozen_fingerprint(theta)}, **dict(stops)
    )
    try:
        return witness.losses, trainer.train()
    except Interrupted:
        return witness.losses, None


EXACT = {"ema_decay": 0.9, "dropout": 0.2, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, base):
    directory = tmp_path_factory.mktemp("runs") / "undisturbed"
    return directory, *trained(directory, base, **EXACT)


@pytest.mark.end_to_end
def test_it_learns_and_keeps_the_adapter_alone(undisturbed, base):
    directory, losses, results = undisturbed
    assert losses[8] < losses[1]
    files = RunDirectory(directory)
    assert not files.parameters.exists()
    theta, run = load_run(base).theta, load_run(directory)
    np.testing.assert_array_equal(run.theta.W_e, theta.W_e)
    assert np.abs(run.theta.layers.mlp.W_mlp1 - theta.layers.mlp.W_mlp1).max() > 1e-4
    settings = files.description().settings
    shapes = adapter_shapes(theta, settings)
    checkpoint = read_checkpoint(files.checkpoints, 8, {"params": shapes, "ema": shapes}).trees
    assert all(isinstance(part, LowRank) for part in low_rank_of(checkpoint["params"]).values())
    averaged = merged(theta, jax.tree.map(jnp.asarray, checkpoint["ema"]), 1.5)
    chex.assert_trees_all_close(averaged, run.theta, rtol=1e-7, atol=1e-7)
    assert results["loss"] < losses[1]


@pytest.mark.end_to_end
def test_an_interrupted_run_goes_on_exactly(undisturbed, base, tmp_path):
    expected, losses, results = undisturbed
    first, none = trained(tmp_path / "run", base, {"stop_after": 5}.items(), **EXACT)
    assert none is None
    unfinished = load_run(tmp_path / "run")  # of the last checkpoint
    assert unfinished.config.d_e == 16
    second, found = trained(tmp_path / "run", base, **EXACT)
    assert (found, {**first, **second}) == (results, losses)
    chex.assert_trees_all_equal(*(load_run(d).theta for d in (tmp_path / "run", expected)))


@pytest.mark.parametrize("mesh", ["replica=2,data=2,model=2", pytest.param("data=4,model=2", marks=pytest.mark.slow)])
@pytest.mark.end_to_end
def test_a_mesh_has_the_same_numbers(base, tmp_path, mesh):
    sizes = {"vocabulary_multiple": 2, "learning_rate": 0.01}
    alone, result = trained(tmp_path / "one", base, **sizes)
    losses, found = trained(tmp_path / "mesh", base, mesh=mesh, **sizes)
    np.testing.assert_allclose(list(losses.values()), list(alone.values()), rtol=2e-5)
    assert found == pytest.approx(result, rel=2e-5)
    thetas = (load_run(tmp_path / name).theta for name in ("mesh", "one"))
    chex.assert_trees_all_close(*thetas, rtol=1e-7, atol=2e-5)


@pytest.mark.end_to_end
def test_a_model_that_is_gone_or_has_changed_is_said(base, tmp_path):
    theta = load_run(base).theta
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in ("config.json", "tokenizer.json", "parameters.safetensors"):
        (copy / file).write_bytes((base / file).read_bytes())
    trained(tmp_path / "run", copy, **EXACT)
    RunDirectory(copy).save_parameters(theta._replace(W_e=theta.W_e + 1))
    with pytest.raises(RunError, match=r"copy has other parameters than those that .*run adapts: restore the original"):
        load_run(tmp_path / "run")
    (copy / "config.json").unlink()
    with pytest.raises(RunError, match=r"run adapts the model of .*copy, which cannot be read: .* is not a run dir"):
        load_run(tmp_path / "run")
