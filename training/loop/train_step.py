"""One update of the parameters: loss and gradient of a batch, in parts if need be, and the optimizer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float

from algorithms import Variant
from algorithms.ops.draws import by_own_key
from training.settings import REMAT, Settings
from training.tasks.low_rank import merged, scale_of
from training.tasks.objectives import Objective, cast


class TrainState(NamedTuple):
    """What an update changes.

    Attributes:
        params: the parameters that are trained, float32: θ, or an adapter of low rank.
        opt_state: the optimizer's.
        healthy: false from the first update on whose loss or gradient is not finite; nothing changes any more then.
        ema: exponential moving average of the parameters, or None.
    """

    params: Any
    opt_state: Any
    healthy: Bool[Array, ""]
    ema: Any


class StepMetrics(NamedTuple):
    """What an update reports: nats for each predicted token, their number, the gradient's norm, and the rate."""

    loss: Float[Array, ""]
    tokens: Float[Array, ""]
    gradient_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    healthy: Bool[Array, ""]


Step = Callable[..., tuple[TrainState, StepMetrics]]


def init_state(params: Any, optimizer: optax.GradientTransformation, *, ema_decay: float = 0.0) -> TrainState:
    """Return the state before the first update.

    Args:
        params: the parameters.
        optimizer: what updates them.
        ema_decay: decay of their exponential moving average; 0 for none.
    """
    copy = jax.tree.map(jnp.copy, params) if ema_decay else None  # a buffer may be donated only once
    return TrainState(params, optimizer.init(params), jnp.asarray(True), copy)


def batch_loss(
    objective: Objective, settings: Settings, variant: Variant, *, N_V: int | None = None
) -> Callable[..., Any]:
    """Return the function (params, batch, step, key, frozen) → (loss per token, gradient, tokens) of a whole batch.

    Where θ is `frozen`, the parameters are an adapter of it, and the gradient is by that alone.

    Sequence r draws its dropout with ``fold_in(fold_in(key, step), r)``, and every part is divided by the weight of the
    whole batch, so that loss and gradient do not depend on the number of parts.
    """

    def part_loss(params, part, keys, weight, frozen):
        params = params if frozen is None else merged(frozen, params, scale_of(settings))
        options = {"label_smoothing": settings.label_smoothing, "remat": REMAT[settings.remat], "N_V": N_V}
        return objective.loss(cast(params, settings.dtype), part, keys, variant=variant, **options) / weight

    def whole(params, batch, step, key, frozen=None):
        tokens = objective.weights(batch).sum()
        weight = jnp.maximum(tokens, 1)
        keys = None
        if variant.dropout:
            key = jax.random.fold_in(key, step)
            keys = jax.vmap(by_own_key(jax.random.fold_in), in_axes=(None, 0))(key, jnp.arange(settings.batch_size))
        if settings.accumulation_steps == 1:
            return *jax.value_and_grad(part_loss)(params, batch, keys, weight, frozen), tokens
        parts = jax.tree.map(lambda a: _parts(a, settings.accumulation_steps), (dict(batch), keys))

        def add(total, part):
            return jax.tree.map(jnp.add, total, jax.value_and_grad(part_loss)(params, *part, weight, frozen)), None

        first = jax.tree.map(lambda a: a[0], parts)
        shapes = jax.eval_shape(jax.value_and_grad(part_loss), params, *first, weight, frozen)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        total, _ = jax.lax.scan(add, zero, parts)
        return *total, tokens

    return whole


def _parts(array: Array, n: int) -> Array:
    """An array of sequences in n parts; part i has the sequences i, i + n, …, so that each device keeps its own."""
    return jnp.moveaxis(array.reshape(-1, n, *array.shape[1:]), 1, 0)


def make_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    settings: Settings,
    variant: Variant,
    *,
    N_V: int | None = None,
) -> Step:
    """Return the update (state, batch, step, key, frozen) → (state, metrics), to be compiled.

    Args:
        objective: the loss to minimize.
        optimizer: what makes updates of gradients.
        schedule: the learning rate, for the metrics.
        settings: of the run.
        variant: what differs from the pseudocode.
        N_V: tokens, where the parameters have more columns for them; see `training.mesh.padding`.
    """
    loss_and_gradient = batch_loss(objective, settings, variant, N_V=N_V)

    def step(state, batch, step, key, frozen=None):
        loss, gradient, tokens = loss_and_gradient(state.params, batch, step, key, frozen)
        norm = optax.tree.norm(gradient)
        healthy = state.healthy & jnp.isfinite(loss) & jnp.isfinite(norm)
        updates, opt_state = optimizer.update(gradient, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema is not None:  # at first over few steps, so that the start is soon forgotten
            decay = jnp.minimum(settings.ema_decay, (1 + step) / (10 + step)).astype(jnp.float32)
            ema = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, ema, params)
        new = TrainState(params, opt_state, healthy, ema)
        new = jax.tree.map(lambda after, before: jnp.where(healthy, after, before), new, state)
        new = new._replace(healthy=healthy)
        return new, StepMetrics(loss, tokens, norm, jnp.asarray(schedule(step)), healthy)

    return step
