"""The optimizers against their formulas in NumPy, and the schedules against theirs."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import cases
from tests.training_cases import N_V, settings_for
from training.loop.optimizers import decays, make_optimizer, make_schedule
from training.runs.named_arrays import flatten
from training.tasks import TASKS
from training.tasks.models import model_config, model_shapes

GRADIENTS = np.random.default_rng(0).standard_normal((5, 3))
START = np.array([0.5, -2.0, 1.0])


def schedule(name, **options):
    return make_schedule(name, 0.1, **({"steps": 20, "warmup": 4, "final_fraction": 0.1, "d_e": 16} | options))


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
    np.testing.assert_allclose(list(run(make_optimizer("sgd", schedule("constant")))), expected, rtol=1e-12)


def test_adam_has_the_constants_of_the_source():
    optimizer = make_optimizer("adam", schedule("vaswani"))
    expected = list(adam(lambda t: 0.1 * 16**-0.5 * min(t**-0.5, t * 4**-1.5)))
    np.testing.assert_allclose(list(run(optimizer)), expected, rtol=1e-9)


def test_the_first_rate_is_that_of_step_one():
    assert float(schedule("vaswani")(0)) == pytest.approx(0.1 * 16**-0.5 * 4**-1.5)
    assert float(schedule("cosine")(0)) == pytest.approx(0.1 / 4)


def test_cosine_rises_falls_and_ends():
    rates = [float(schedule("cosine")(done)) for done in range(25)]
    np.testing.assert_allclose(rates[:4], 0.1 * np.arange(1, 5) / 4)
    t = np.arange(5, 21)
    np.testing.assert_allclose(rates[4:20], 0.1 * (0.1 + 0.9 * (1 + np.cos(np.pi * (t - 4) / 16)) / 2), rtol=1e-6)
    np.testing.assert_allclose(rates[19:], 0.01)


def test_warm_up_of_a_tenth_unless_given():
    rates = [float(schedule("cosine", warmup=0, steps=50)(done)) for done in range(50)]
    assert np.argmax(rates) == 4
    assert float(schedule("vaswani", warmup=0)(3999)) == pytest.approx(0.1 / 4 * 4000**-0.5)


def test_weight_decay_spares_biases_norms_and_embeddings():
    for task in TASKS:
        settings = settings_for(task, variant="BERT" if task == "e" else "PAPER")
        theta = model_shapes(task, model_config(settings, N_V), N_C=2)
        spared = {name.rpartition(".")[2] for name, decayed in flatten(decays(theta)).items() if not decayed}
        decayed = {name.rpartition(".")[2] for name, decayed in flatten(decays(theta)).items() if decayed}
        assert spared == {name for name in spared if name[0] == "b" or name in ("gamma", "beta", "W_e", "W_p")}
        assert {"W_q", "W_k", "W_v", "W_o", "W_mlp1", "W_mlp2"} <= decayed
        assert {"W_e", "W_p"} & decayed == set()


def test_adamw_decays_matrices_by_the_rate_times_the_weight_decay():
    settings = settings_for("d", tied=False)
    theta = cases.random_like(model_shapes("d", model_config(settings, N_V)))
    optimizer = make_optimizer("adamw", schedule("constant"), weight_decay=0.3)
    gradient = jax.tree.map(jnp.zeros_like, theta)
    updates, _ = jax.jit(lambda g, p: optimizer.update(g, optimizer.init(p), p))(gradient, theta)
    new = flatten(optax.apply_updates(theta, updates))
    for name, decayed in flatten(decays(theta)).items():
        np.testing.assert_allclose(new[name], flatten(theta)[name] * (1 - 0.03 * decayed), rtol=1e-5)


def test_clipping_is_by_the_global_norm():
    optimizer = make_optimizer("sgd", schedule("constant"), clip_norm=0.5)
    theta = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
    gradient = {"a": jnp.array([3.0, 0.0]), "b": jnp.array([4.0])}
    updates, _ = optimizer.update(gradient, optimizer.init(theta), theta)
    np.testing.assert_allclose(updates["a"], [-0.1 * 0.5 * 3 / 5, 0])
    np.testing.assert_allclose(updates["b"], [-0.1 * 0.5 * 4 / 5])
    small = jax.tree.map(lambda g: g / 100, gradient)
    updates, _ = optimizer.update(small, optimizer.init(theta), theta)
    np.testing.assert_allclose(updates["a"], [-0.1 * 0.03, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: schedule("linear"), "no schedule 'linear'; choose one of constant, cosine, vaswani"),
        (lambda: schedule("cosine", warmup=21), "warmup is 21, expected at most the 20 steps"),
        (lambda: make_optimizer("lion", schedule("constant")), "no optimizer 'lion'; choose one of sgd, adam, adamw"),
        (
            lambda: make_optimizer("sgd", schedule("constant"), weight_decay=0.1),
            "weight_decay is 0.1, but sgd has none; choose adamw, or 0",
        ),
    ],
)
def test_what_cannot_be_is_said(call, message):
    with pytest.raises(ValueError, match=message):
        call()
