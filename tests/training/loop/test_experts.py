"""Training a mixture of experts: the balancing loss, what counts as active, and runs that are resumed and continued."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import DTransformerConfig, d_hidden_state, init_d_transformer
from algorithms.inside import record
from algorithms.lines import Experts
from algorithms.model.variants import LLAMA
from tests.training_cases import make_trainer, settings_for
from training.generation import Generator, decoding
from training.loop.cost import active_parameters
from training.loop.train_step import batch_loss
from training.runs.metrics import read_metrics
from training.tasks import TASKS

pytestmark = pytest.mark.sampled(1, tests=4)

N, K, BALANCE = 4, 2, 0.3
EXPERTS = Experts(n=N, k=K, activation="silu", gated=True, biases=False, balance=BALANCE)
VARIANT = LLAMA.but(mlp=EXPERTS)
SIZES = {"N_V": 17, "l_max": 7, "L": 2, "H": 2, "d_e": 8, "d_mlp": 12}
CONFIG = DTransformerConfig(**SIZES, variant=VARIANT)
BATCH = {"x": np.random.default_rng(0).integers(0, 14, (3, 7)), "length": np.array([7, 4, 2])}


@pytest.fixture(scope="module")
def theta():
    return init_d_transformer(jax.random.key(0), CONFIG)


def routed_by_loops(theta):
    """The layers' router scores and choices of the columns that are in a sequence, one by one."""
    _, seen = record(d_hidden_state, "X_tilde@7")(BATCH["x"], theta)
    for l, W_r in enumerate(np.asarray(theta.layers.mlp.W_r)):
        for b, length in enumerate(BATCH["length"]):
            for t in range(length):
                y = W_r @ np.asarray(seen["X_tilde@7"])[l, :, b, t]
                p = np.exp(y - y.max()) / np.exp(y - y.max()).sum()
                yield p, np.argsort(-p, kind="stable")[:K]


@pytest.mark.end_to_end
def test_the_balancing_loss_is_that_of_the_loops(theta):
    f, p, columns = np.zeros(N), np.zeros(N), 0
    for scores, chosen in routed_by_loops(theta):
        p, columns = p + scores, columns + 1
        f[chosen] += 1
    predicted = (np.asarray(BATCH["length"]) - 1).sum()
    losses = TASKS["d"].objective.losses(theta, jax.device_put(BATCH))
    expected = BALANCE * predicted * N * (f / columns) @ (p / columns)
    np.testing.assert_allclose(losses.balance, expected, rtol=1e-6)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_training_follows_the_gradient_of_both_losses(theta, accumulation_steps):
    settings, batch = settings_for("d", batch_size=3, accumulation_steps=accumulation_steps), jax.device_put(BATCH)
    whole = batch_loss(TASKS["d"].objective, settings)

    def value(theta):
        losses, _, _ = whole(theta, batch, 0, jax.random.key(0))
        return float(losses.nats) + float(losses.balance)

    _, gradient, _ = whole(theta, batch, 0, jax.random.key(0))
    W_r, epsilon = theta.layers.mlp.W_r, 1e-3
    direction = jnp.cos(jnp.arange(W_r.size)).reshape(W_r.shape)
    mlps = (theta.layers.mlp._replace(W_r=W_r + moved) for moved in (epsilon * direction, -epsilon * direction))
    ahead, behind = (value(theta._replace(layers=theta.layers._replace(mlp=mlp))) for mlp in mlps)
    along = jnp.vdot(gradient.layers.mlp.W_r, direction)
    np.testing.assert_allclose(along, (ahead - behind) / (2 * epsilon), rtol=2e-3)


def test_active_parameters_and_flops_count_the_chosen_experts(theta):
    """By hand: 3 matrices of d_e × d_mlp an expert, of which k in n are read, and a product of each with a token."""
    d_e, d_mlp, L, l = SIZES["d_e"], SIZES["d_mlp"], SIZES["L"], 5
    every = sum(leaf.size for leaf in jax.tree.leaves(theta))
    assert active_parameters(theta) == every - L * (N - K) * 3 * d_e * d_mlp
    dense = dataclasses.replace(CONFIG, variant=LLAMA)
    more = TASKS["d"].flops(CONFIG, l) - TASKS["d"].flops(dense, l)
    assert more == L * l * 2 * d_e * (N + (K - 1) * 3 * d_mlp)


@pytest.mark.thorough
def test_metrics_have_the_balancing_loss(tmp_path):
    settings = settings_for("d", variant=json.dumps(VARIANT.to_json()), steps=4, eval_every=2)
    with jax.enable_x64(False):
        make_trainer(tmp_path, settings)[0].train()
    found = [line["balance"] for line in read_metrics(tmp_path / "metrics.jsonl") if "balance" in line]
    assert len(found) == 4
    assert all(BALANCE * 0.5 < balance < BALANCE * N for balance in found)


@pytest.mark.thorough
def test_a_cached_step_reads_only_the_chosen_experts(monkeypatch):
    """By the compiler: the whole step reads as many bytes with 4 experts as with 32, but for the router."""

    def read(n):
        config = dataclasses.replace(CONFIG, variant=LLAMA.but(mlp=dataclasses.replace(EXPERTS, n=n)))
        continuation = Generator(init_d_transformer(jax.random.key(0), config), config).begin(
            np.array([[3, 4]]), lengths=np.array([2]), l_gen=3, key=jax.random.key(0), tau=0.0
        )
        found, decode = [], decoding.decode

        def compiled(*arguments, **options):
            found.append(decode.lower(*arguments, **options).compile().cost_analysis()["bytes accessed"])
            return decode(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(decoding, "decode", compiled)
            continuation.extend(1)
        return found[0]

    expert = 3 * SIZES["d_e"] * SIZES["d_mlp"] * 4
    assert read(32) - read(4) < 28 * SIZES["L"] * expert / 4
