"""The optimizers against their formulas in NumPy, and the schedules against theirs."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import Array

import algorithms as alg
from algorithms import MLPParams
from algorithms.lines import MLP, RGLRU, Experts, GatedDelta, KimiDelta, Latent, Mamba2, ShortConvolution, array
from algorithms.model.theta import theta_shapes
from tests import cases
from tests.cases import random_theta
from tests.training_cases import N_V, settings_for
from training.loop.optimizers import make_schedule, optimizer_from
from training.loop.train_step import at_step
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
    theta, update = START, jax.jit(optimizer.update)
    state = optimizer.init(theta)
    for g in GRADIENTS:
        updates, state = update(g, state, theta)
        theta = theta + np.asarray(updates)
        yield theta


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
    rates = np.asarray(jax.jit(jax.vmap(schedule(name)))(np.arange(25)))
    np.testing.assert_allclose(rates[:4], 0.1 * np.arange(1, 5) / 4)
    np.testing.assert_allclose(rates[4:20], FALLING[name], rtol=1e-6)
    np.testing.assert_allclose(rates[19:], FALLING[name][-1])


@pytest.mark.parametrize("name", ["linear", "wsd"])
@pytest.mark.parametrize("final_fraction", [0.0, 0.3])
def test_a_compiled_schedule_is_exact_at_its_end_and_close_to_the_line_before(x32, name, final_fraction):
    for steps, warmup in ((600, 0), (599, 37), (49, 3), (7, 0), (5, 5)):
        rate = schedule(name, steps=steps, warmup=warmup, final_fraction=final_fraction)
        rates = np.asarray(jax.jit(jax.vmap(rate))(jnp.arange(steps)), np.float64)
        least, n = 0.1 * final_fraction, min(steps - warmup, -(-steps // 5)) if name == "wsd" else steps - warmup
        t = np.arange(1, steps + 1)
        fall = least + (0.1 - least) * np.minimum(1, (steps - t) / max(n, 1))
        expected = np.where(t < warmup, 0.1 * t / max(warmup, 1), fall)
        if warmup < steps:
            assert rates[-1] == np.float32(least)
            np.testing.assert_allclose(rates, expected, rtol=3e-7)
        assert (rates >= 0).all()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_update_has_the_rate_of_its_step_whatever_was_skipped(name):
    """The state of the optimizer counts the updates that were made; its rate is that of the step."""
    theta = random_theta(alg.DTransformerConfig(N_V=5, l_max=4, L=1, H=1, d_e=4, d_mlp=4))
    rates = {"learning_rate": 0.1, "embedding_learning_rate": 0.05, "vector_learning_rate": 0.02}
    of = {"schedule": "linear", "steps": 20, "warmup": 0, "clip_norm": 0.0}
    expected = optimizer_of(name, **CONSTANT | {n: rate * 8 / 20 for n, rate in rates.items()})
    optimizer = optimizer_of(name, **of, **rates)

    def updates_of(theta):
        state, found = expected.init(theta), at_step(jnp.int32(11), optimizer.init(theta))
        return [o.update(theta, s, theta)[0] for o, s in ((optimizer, found), (expected, state))]

    updates = jax.jit(updates_of)(theta)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-12), *updates)


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
        mask = flatten(alg.weight_decay_mask(model_shapes(task, model_config(settings, N_V), N_C=2)))
        spared, decayed = (
            {name.rpartition(".")[2] for name, is_decayed in mask.items() if is_decayed == wanted}
            for wanted in (False, True)
        )
        embeddings = {"W_e", "W_p", "W_t", "W_row", "W_column"}
        assert spared == {name for name in spared if name.startswith(("b", "gamma")) or name in embeddings}
        assert {"W_q", "W_k", "W_v", "W_o", "W_mlp1", "W_mlp2"} <= decayed
        assert embeddings & decayed == set()


def test_adamw_decays_matrices_by_the_rate_times_the_weight_decay():
    settings = settings_for("d", tied=False)
    theta = cases.random_like(model_shapes("d", model_config(settings, N_V)))
    optimizer = optimizer_of("adamw", **CONSTANT, weight_decay=0.3)
    gradient = jax.tree.map(np.zeros_like, theta)
    new = flatten(
        jax.jit(lambda g, p: optax.apply_updates(p, optimizer.update(g, optimizer.init(p), p)[0]))(gradient, theta)
    )
    for name, decayed in flatten(alg.weight_decay_mask(theta)).items():
        np.testing.assert_allclose(new[name], np.asarray(flatten(theta)[name]) * (1 - 0.03 * decayed), rtol=1e-5)


def orthogonalized(G):
    """A matrix by five steps of Newton and Schulz (Jordan et al. 2024)."""
    X = G.T if G.shape[0] > G.shape[1] else G
    X = X / np.linalg.norm(X)
    for _ in range(5):
        A = X @ X.T
        X = 3.4445 * X + (-4.7750 * A + 2.0315 * A @ A) @ X
    return X.T if G.shape[0] > G.shape[1] else X


class NamedParams(NamedTuple):
    """Arrays whose names say nothing of their roles, beside an MLP's."""

    mlp: MLPParams
    W_c: Array
    W_q: Array
    W_e: Array
    codes: Array
    A: Array
    per_head: Array


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named(MLP):
    """An MLP with unused arrays."""

    def shapes(self):
        return NamedParams(
            super().shapes(),
            array("d_mlp d_e"),
            array("d_mlp d_e"),
            array("N_experts d_e d_mlp"),
            array("d_e N_codes", role="embedding"),
            array("d_e d_mlp", deviation=0.02, role="matrix"),
            array("d_e H d_attn", role="matrix"),
        )

    def sizes(self):
        return {"N_experts": 3, "N_codes": 5}


LATENT = alg.LLAMA.but(attention=Latent(d_c=7, d_r=4, d_q=11), mlp=Experts(n=3, activation="silu", biases=False))
ROLES = {  # variant → leading axes of each array's matrices: of layers and experts; and Adam's arrays with their rates
    "paper": (
        alg.PAPER,
        {"attention.heads.W_q": 1, "attention.heads.W_v": 1, "attention.W_o": 1, "mlp.W_mlp1": 1, "mlp.W_mlp2": 1},
        {"W_e": 1e-2, "W_p": 1e-2, "W_u": 1e-2, "layers.mlp.b_mlp1": 4e-3, "layers.attention.heads.b_q": 4e-3},
    ),
    "latent": (
        LATENT,
        {f"attention.W_{name}": 1 for name in ("cq", "q", "qr", "c", "kr", "k", "v", "o")}
        | {"mlp.W_r": 1, "mlp.experts.W_mlp1": 2, "mlp.experts.W_mlp2": 2},
        {"W_e": 1e-2, "layers.attention.norm_c.gamma": 4e-3},
    ),
    "relative": (
        alg.GOPHER,
        {"attention.W_r": 1, "attention.heads.W_k": 1},
        {"layers.attention.u": 4e-3},
    ),
    **{  # whose heads are joined as models store them; the groups of RG-LRU's gates are matrices by themselves
        name: (alg.LLAMA.but(attention=mixer), {f"attention.W_{of}": n for of, n in matrices.items()}, {})
        for name, mixer, matrices in (
            (
                "delta",
                GatedDelta(n=4, n_keys=2, d_key=3, d_value=5),
                dict.fromkeys(("q", "k", "v", "z", "a", "out"), 1),
            ),
            ("kimi", KimiDelta(n=4, n_keys=2, d_key=3, d_value=5, rank=7), dict.fromkeys(("q", "v", "z2", "a2"), 1)),
            ("mamba", Mamba2(n=4, n_keys=2, d_key=3, d_value=5), dict.fromkeys(("q", "k", "v", "z", "a", "out"), 1)),
            ("rg-lru", RGLRU(n=3, d=5), {"x": 1, "y": 1, "i": 2, "r": 2, "out": 1}),
            ("convolution", ShortConvolution(d=5), {"x": 1, "i": 1, "y": 1, "out": 1}),
        )
    },
    "own": (
        alg.PAPER.but(mlp=Named()),
        {"mlp.W_c": 1, "mlp.W_q": 1, "mlp.W_e": 2, "mlp.A": 1, "mlp.per_head": 1, "mlp.mlp.W_mlp1": 1},
        {"W_e": 1e-2, "layers.mlp.codes": 1e-2},
    ),
}


THOROUGH = ("kimi", "mamba", "rg-lru", "convolution")


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.thorough] * (n in THOROUGH)) for n in ROLES])
def test_muon_makes_each_matrix_orthogonal_the_heads_of_a_layer_together(name):
    variant, matrices, by_adam = ROLES[name]
    sizes = {"N_V": 13, "l_max": 5, "L": 2, "H": 2, "d_e": 6, "d_mlp": 9, "d_attn": 4, "d_mid": 5}
    theta = random_theta(alg.DTransformerConfig(**sizes, variant=variant, tied=False))
    gradient = jax.tree.map(lambda a: 0.01 * np.asarray(a), theta)
    optimizer = optimizer_of("muon", **CONSTANT, weight_decay=0.0)
    by_optax = optax.contrib.muon(0.1, muon_weight_dimension_numbers=alg.muon_dimensions)
    found = [jax.jit(lambda g, p, o=o: o.update(g, o.init(p), p)[0])(gradient, theta) for o in (optimizer, by_optax)]
    gradient = flatten(gradient)
    for updates in map(flatten, found):
        for matrix, axes in matrices.items():
            G, update = np.asarray(gradient[f"layers.{matrix}"], np.float64), np.asarray(updates[f"layers.{matrix}"])
            shape = (G.shape[1], -1) if matrix == "mlp.per_head" else (-1, G.shape[-1])
            for at in np.ndindex(G.shape[:axes]):
                one = G[at].reshape(shape)
                expected = -0.1 * np.sqrt(max(1, one.shape[0] / one.shape[1])) * orthogonalized(one)
                np.testing.assert_allclose(update[at].reshape(shape), expected, atol=2e-4, err_msg=matrix)
    for name, rate in by_adam.items():  # Adam's first step
        np.testing.assert_allclose(flatten(found[0])[name], -rate * np.sign(gradient[name]), rtol=1e-4, err_msg=name)
    of_matrix = {name for name, of in flatten(alg.roles_of(theta)).items() if of == "matrix"}
    assert {f"layers.{matrix}" for matrix in matrices} <= of_matrix
    assert not of_matrix & by_adam.keys()


@pytest.mark.thorough
def test_adafactor_updates_each_matrix_as_optax_does_one_alone():
    """Heads joined, each expert and each layer by itself, also in the scale and the clipping of the update."""
    sizes = {"N_V": 139, "l_max": 5, "L": 2, "H": 3, "d_e": 131, "d_mlp": 137, "d_attn": 43, "d_mid": 44}
    variant = alg.PAPER.but(mlp=Experts(n=3, activation="relu"))
    theta = random_theta(alg.DTransformerConfig(**sizes, variant=variant, tied=False), dtype=jnp.float32)
    drawn = np.random.default_rng(5)

    def uneven(path, a):
        scale = drawn.uniform(0.1, 3.0, (2, *[1] * (a.ndim - 1))) if path[0].name == "layers" else 1
        return np.float32(scale * drawn.standard_normal(a.shape))

    theta, *gradients = (jax.tree_util.tree_map_with_path(uneven, theta) for _ in range(3))

    def updates_of(optimizer, theta, gradients):
        state, found = optimizer.init(theta), []
        for gradient in gradients:
            updates, state = optimizer.update(gradient, state, theta)
            found.append(updates)
        return found, state

    def ours(theta, gradients):
        return updates_of(optimizer_of("adafactor", **CONSTANT), theta, gradients)

    found, state = jax.jit(ours)(theta, gradients)
    by_optax = jax.jit(lambda p, gradients: updates_of(optax.adafactor(0.1), p, gradients)[0])
    arrays = [flatten(tree) for tree in (theta, *gradients, *found)]
    n_matrices = n_second_moments = 0
    for name, p in arrays[0].items():
        role = flatten(alg.roles_of(theta))[name]
        shape = (-1, *p.shape[1:]) if name.startswith("layers") else (1, *p.shape)
        if role == "matrix":
            rows = p.shape[-2] * (sizes["H"] if ".heads." in name else 1)
            shape = (-1, rows, p.shape[-1])
            n_matrices += 1
        parts = [np.asarray(tree[name]).reshape(shape) for tree in arrays]
        for one, first, second, *mine in zip(*parts, strict=True):
            for a, b in zip(mine, by_optax(one, [first, second]), strict=True):
                np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-9, err_msg=name)
            n_second_moments += sum(one.shape) if min(one.shape) > 128 and one.ndim == 2 else one.size
    assert n_matrices == 7
    kept = sum(leaf.size for leaf in jax.tree.leaves(state))
    assert n_second_moments < kept < n_second_moments + 200
    assert kept < 0.05 * sum(p.size for p in arrays[0].values())


def test_arrays_that_no_line_declares_are_refused():
    theta = random_theta(alg.DTransformerConfig(N_V=5, l_max=4, L=1, H=1, d_e=4, d_mlp=4))
    for function in (alg.roles_of, alg.weight_decay_mask, alg.muon_dimensions):
        with pytest.raises(
            ValueError, match=r"\['probe'\]: expected an array that a line declares, .*, got float32\[3"
        ):
            function({"theta": theta, "probe": jnp.ones(3, jnp.float32)})
        with pytest.raises(ValueError, match=r"^W_mlp1: expected an array that a line declares"):
            function(theta.layers.mlp)


def test_a_matrix_has_two_axes():
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Narrow(MLP):
        """An MLP whose matrix is a vector."""

        def shapes(self):
            return super().shapes()._replace(W_gate=array("d_mlp"))

    theta = theta_shapes(alg.DTransformerParams, alg.PAPER.but(mlp=Narrow()))
    with pytest.raises(ValueError, match=r"W_gate: expected the axes d_out d_in of a matrix, got \[L d_mlp\]; declare"):
        alg.muon_dimensions(theta)


@pytest.mark.parametrize(("factor", "scale"), [(1.0, 0.5 / 5), (0.01, 1.0)])
def test_clipping_is_by_the_global_norm(factor, scale):
    optimizer = optimizer_of("sgd", **(CONSTANT | {"clip_norm": 0.5}))
    gradient = {"a": factor * np.array([3.0, 0.0]), "b": factor * np.array([4.0])}
    updates, _ = jax.jit(optimizer.update)(gradient, optimizer.init(gradient), gradient)
    for name, g in gradient.items():
        np.testing.assert_allclose(updates[name], -0.1 * scale * g)


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
