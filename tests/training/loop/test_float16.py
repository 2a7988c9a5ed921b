"""Mixed precision in float16 with loss scaling: small gradients survive, large ones halve the scale."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from training.commands.train import main
from training.loop import train_step
from training.loop.train_step import LossScale, init_state, make_step
from training.runs.metrics import read_metrics
from training.tasks import settings_from
from training.tasks.objectives import Losses


class Scalar:
    """The loss ``f(w)`` of a single parameter, in the dtype of the computation."""

    def __init__(self, f):
        self.f = f

    def losses(self, params, batch, options, **_):
        nats = self.f(params["w"]).astype(jnp.float32)
        return Losses(nats, nats, None, None)

    def weights(self, batch):
        return jnp.ones(1)


def updates(f, n, *, dtype="float16", w=1.0, rate=lambda _: 1.0):
    """The state and the metrics after each of n steps of gradient descent."""
    optimizer = optax.sgd(rate)
    settings = dataclasses.replace(settings_from({"steps": 10}, task="d"), dtype=dtype)
    step = jax.jit(make_step(Scalar(f), optimizer, rate, settings))
    state = init_state({"w": jnp.asarray(w, jnp.float32)}, optimizer, dtype=dtype)
    found = []
    for i in range(n):
        state, metrics = step(state, {}, jnp.asarray(i), jax.random.key(0))
        found.append((state, metrics))
    return found


def tiny(w):
    """Its gradient is 2⁻²⁷: float16 has nothing between 0 and 2⁻²⁴."""
    return jnp.square(w * w.dtype.type(2.0**-14))


def huge(w):
    """Its gradient is 16, and 2¹² times that is too large for float16."""
    return w * w.dtype.type(16)


def test_a_gradient_that_float16_lacks_survives():
    ((_, metrics),) = updates(tiny, 1)
    np.testing.assert_allclose(metrics.gradient_norm, 2.0**-27)
    without = jax.grad(lambda w: tiny(w.astype(jnp.float16)).astype(jnp.float32))(jnp.asarray(1.0, jnp.float32))
    assert without == 0


def test_a_gradient_that_overflows_is_left_out_and_the_scale_halves():
    found = updates(huge, 5)
    assert [float(state.loss_scale.scale) for state, _ in found] == [2.0**14, 2.0**13, 2.0**12, 2.0**11, 2.0**11]
    assert [float(state.params["w"]) for state, _ in found] == [1, 1, 1, 1, -15]
    assert [float(metrics.gradient_norm) for _, metrics in found[3:]] == [np.inf, 16]
    assert all(bool(metrics.healthy) for _, metrics in found)


def test_updates_that_are_left_out_do_not_delay_the_schedule():
    """The rates 1, 0.8, 0.6, … of the log are those of the updates; the first four overflow."""
    rate = optax.linear_schedule(1.0, 0.0, 5)
    found = updates(huge, 6, rate=rate)
    rates = [float(metrics.learning_rate) for _, metrics in found]
    w = [1.0, *(float(state.params["w"]) for state, _ in found)]
    np.testing.assert_allclose(-np.diff(w) / 16, [0, 0, 0, 0, rates[4], rates[5]], rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(rates, [1, 0.8, 0.6, 0.4, 0.2, 0], atol=1e-7)


def test_what_no_scale_helps_ends_the_training():
    ((_, metrics),) = updates(lambda w: w / w.dtype.type(0), 1)
    assert not bool(metrics.healthy)
    found = updates(jnp.sqrt, 17, w=0.0)  # its gradient is never finite
    assert [bool(metrics.healthy) for _, metrics in found] == [True] * 15 + [False] * 2


def test_the_scale_doubles_after_a_while(monkeypatch):
    monkeypatch.setattr(train_step, "GROWTH", 3)
    scale = LossScale(jnp.asarray(8.0), jnp.asarray(0))
    found = []
    for finite in (True, True, True, False, True, True, True):
        scale = scale.after(jnp.asarray(finite))
        found.append((float(scale.scale), int(scale.sound)))
    assert found == [(8, 1), (8, 2), (16, 0), (8, 0), (8, 1), (8, 2), (16, 0)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_other_types_have_no_scale(dtype):
    ((state, metrics),) = updates(huge, 1, dtype=dtype)
    assert state.loss_scale is None
    assert float(metrics.gradient_norm) == 16


@pytest.mark.slow
def test_a_run_in_float16_learns_and_resumes(tmp_path):
    """The loss is that of float32 within the rounding of float16, and the scale is a part of the checkpoints."""
    text = tmp_path / "text.txt"
    text.write_text("".join(f"{n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(300)))
    flags = "--tokenizer bytes --l_max 16 --L 1 --H 2 --d_e 16 --d_mlp 16 --batch-size 8 --checkpoint-every 20 --quiet"
    losses = {}
    for dtype, *runs in (("float32", 40), ("float16", 40), ("float16", 20, 40)):
        run = tmp_path / f"{dtype}{len(runs)}"
        for steps in runs:
            command = ["d", "--run", str(run), "--data", str(text), "--dtype", dtype, "--steps", str(steps)]
            assert main([*command, *flags.split(), "--schedule", "constant"]) == 0
        losses[run.name] = [line["loss"] for line in read_metrics(run / "metrics.jsonl") if "loss" in line][-1]
        assert json.loads((run / "config.json").read_text())["settings"]["dtype"] == dtype
    assert abs(losses["float161"] - losses["float321"]) < 0.02
    assert losses["float162"] == losses["float161"]
