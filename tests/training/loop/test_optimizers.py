"""The optimizers against their formulas in NumPy, and the schedules against theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import cases
from tests.training_cases import N_V, settings_for
from training.loop.optimizers import decays, make_schedule, optimizer_from
from training.runs.named_arrays import flatten
from training.settings import OPTIMIZERS
from training.tasks import TASKS, settings_from
from training.tasks.models import model_config, model_shapes

GRADIENTS = np.random.default_rng(0).standard_normal((5, 3))
START = np.array([0.5, -2.0, 1.0])
CONSTANT = {"schedule": "constant", "learning_rate": 0.1, "clip_norm": 0.0}


def schedule(name, **options):
    given = {"learning_rate": 0.1, "steps": 20, "warmup": 4, "final_fraction": 0.1, "d_e": 16}
    return make_schedule(settings_for("d", schedule=name, optimizer="adam", **(given | options)))


def optimizer_of(name, **options):
    return optimizer_from(settings_for("d", optimizer=name, **({"d_e": 16} | options)))[1]


def run(optimizer):
    """The parameters after each of a few updates."""
    theta = jnp.asarray(START)
    state = optimizer.init(theta)
    for g in GRADIENTS:
        updates, state = optimizer.update(jnp.asarray(g), state, theta)
        theta = optax.apply_updates(theta, updates)
        yield np.asarray(theta)


def adam(rate, *, beta1=0.9, beta2=0.98, epsilon=1e-9):
    """Adam (Radu 2026, §12.5)."""
    theta, m, v = START.copy(), np.zeros(3), np.zeros(3)
    for t, g in enumerate(GRADIENTS, start=1):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * g**2
        step = m / (1 - beta1**t) / (np.sqrt(v / (1 - beta2**t)) + epsilon)
        theta = theta - rate(t) * step
        yield theta


def test_sgd_is_the_papers():
    expected = START - 0.1 * np.cumsum(GRADIENTS, axis=0)
    np.testing.assert_allclose(list(run(optimizer_of("sgd", **CONSTANT))), expected, rtol=1e-12)


def test_adam_has_the_constants_of_the_source():
    optimizer = optimizer_of("adam", schedule="vaswani", learning_rate=0.1, warmup=4, clip_norm=0.0)
    expected = list(adam(lambda t: 0.1 * 16**-0.5 * min(t**-0.5, t * 4**-1.5)))
    np.testing.assert_allclose(list(run(optimizer)), expected, rtol=1e-9)


T = np.arange(5, 21)
FALLING = {
    "constant": 0.1 * np.ones(16),
    "cosine": 0.1 * (0.1 + 0.9 * (1 + np.cos(np.pi * (T - 4) / 16)) / 2),
    "linear": 0.1 * (0.1 + 0.9 * (20 - T) / 16),
    "wsd": 0.1 * (0.1 + 0.9 * np.minimum(1, (20 - T) / 4)),
}


@pytest.mark.parametrize("name", FALLING)
def test_a_schedule_rises_falls_and_ends(name):
    rates = [float(schedule(name)(done)) for done in range(25)]
    np.testing.assert_allclose(rates[:4], 0.1 * np.arange(1, 5) / 4)
    np.testing.assert_allclose(rates[4:20], FALLING[name], rtol=1e-6)
    np.testing.assert_allclose(rates[19:], FALLING[name][-1])


def test_what_is_not_given_follows_from_what_it_belongs_to():
    assert settings_for("d", steps=50).warmup == 5
    constant = settings_for("d", optimizer="sgd", schedule="constant")
    assert (constant.warmup, constant.weight_decay) == (0, 0)
    vaswani = settings_for("d", optimizer="adam", schedule="vaswani")
    assert (vaswani.learning_rate, vaswani.warmup, vaswani.weight_decay) == (1.0, 4000, 0)
    assert settings_for("d", optimizer="lion", learning_rate=0.5).learning_rate == 0.5
    for name in OPTIMIZERS:
        assert settings_for("d", optimizer=name).optimizer == name  # no default is refused


def test_weight_decay_spares_biases_norms_and_embeddings():
    for task in TASKS:
        settings = settings_for(task, variant="BERT" if task == "e" else "PAPER")
        theta = model_shapes(task, model_config(settings, N_V), N_C=2)
        spared = {name.rpartition(".")[2] for name, decayed in flatten(decays(theta)).items() if not decayed}
        decayed = {name.rpartition(".")[2] for name, decayed in flatten(decays(theta)).items() if decayed}
        embeddings = {"W_e", "W_p", "W_row", "W_column"}
        assert spared == {name for name in spared if name.startswith(("b", "gamma")) or name in embeddings}
        assert {"W_q", "W_k", "W_v", "W_o", "W_mlp1", "W_mlp2"} <= decayed
        assert embeddings & decayed == set()


def test_adamw_decays_matrices_by_the_rate_times_the_weight_decay():
    settings = settings_for("d", tied=False)
    theta = cases.random_like(model_shapes("d", model_config(settings, N_V)))
    optimizer = optimizer_of("adamw", **CONSTANT, weight_decay=0.3)
    gradient = jax.tree.map(jnp.zeros_like, theta)
    updates, _ = jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p))(gradient, theta)
    new = flatten(optax.apply_updates(theta, updates))
    for name, decayed in flatten(decays(theta)).items():
        np.testing.assert_allclose(new[name], flatten(theta)[name] * (1 - 0.03 * decayed), rtol=1e-5)


def test_muon_makes_each_matrix_orthogonal_the_heads_of_a_layer_together():
    settings = settings_for("d", tied=False, L=2, optimizer="muon", **CONSTANT, weight_decay=0.0)
    theta = cases.random_like(model_shapes("d", model_config(settings, N_V)))
    optimizer = optimizer_from(settings)[1]
    gradient = jax.tree.map(lambda a: 0.01 * a, theta)
    updates, _ = jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p))(gradient, theta)
    updates, gradient = flatten(updates), flatten(gradient)
    for name in ("layers.attention.heads.W_q", "layers.attention.W_o", "layers.mlp.W_mlp1", "layers.mlp.W_mlp2"):
        for update, G in zip(np.asarray(updates[name]), np.asarray(gradient[name]), strict=True):
            U, _, V = np.linalg.svd(G.reshape(-1, G.shape[-1]), full_matrices=False)
            rows, columns = G.reshape(-1, G.shape[-1]).shape
            expected = -0.1 * np.sqrt(max(1, rows / columns))
            S = np.diag(U.T @ update.reshape(rows, columns) @ V.T)  # about 1: five steps of Newton and Schulz
            assert np.all((S / expected > 0.5) & (S / expected < 1.3)), name
            off = U.T @ update.reshape(rows, columns) @ V.T - np.diag(S)
            np.testing.assert_allclose(off, 0, atol=1e-6)
    for name, rate in (("W_e", settings.embedding_learning_rate), ("layers.mlp.b_mlp1", settings.vector_learning_rate)):
        np.testing.assert_allclose(updates[name], -rate * np.sign(gradient[name]), rtol=1e-4)  # Adam's first step


def test_clipping_is_by_the_global_norm():
    optimizer = optimizer_of("sgd", **(CONSTANT | {"clip_norm": 0.5}))
    theta = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    gradient = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    updates, _ = optimizer.update(gradient, optimizer.init(theta), theta)
    np.testing.assert_allclose(updates["a"], [-0.1 * 0.5 * 3 / 5, 0])
    np.testing.assert_allclose(updates["b"], [-0.1 * 0.5 * 4 / 5])
    small = jax.tree.map(lambda g: g / 100, gradient)
    updates, _ = optimizer.update(small, optimizer.init(theta), theta)
    np.testing.assert_allclose(updates["a"], [-0.1 * 0.03, 0])


def test_going_on_from_a_trained_model_has_rates_of_its_own():
    """A preset's, a file's and a flag's come before them."""
    for task in TASKS:
        settings = settings_from({"start_from": "model"}, task=task)
        assert (settings.optimizer, settings.learning_rate, settings.weight_decay) == ("adamw", 1e-4, 0.1)
        assert (settings.schedule, settings.final_fraction, settings.warmup) == ("cosine", 0.02, settings.steps // 10)
    muon = settings_from({"start_from": "model", "optimizer": "muon"}, task="d")
    rates = (muon.learning_rate, muon.embedding_learning_rate, muon.vector_learning_rate)
    assert rates == (2e-2 / 40, 1e-2 / 40, 4e-3 / 40)
    asked = settings_from({"start_from": "model", "learning_rate": 3e-4, "schedule": "linear"}, task="d")
    assert (asked.optimizer, asked.learning_rate, asked.final_fraction) == ("adamw", 3e-4, 0.0)
    assert settings_from({"start_from": ""}, task="d").optimizer == "muon"
