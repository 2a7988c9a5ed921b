"""One update of the parameters: loss and gradient of a batch, accumulated over parts if set, and the optimizer."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import Array
from jaxtyping import Bool, Float, Int

from algorithms.ops.dropout import by_own_key
from training.settings import Settings
from training.tasks.low_rank import merged, scale_of
from training.tasks.objectives import Objective, cast, options_of

FIRST_SCALE = 2.0**15  # initial loss scale: gradients in float16 would underflow below 6e-8
GROWTH = 2000  # consecutive updates with finite gradients after which the scale doubles


class LossScale(NamedTuple):
    """The loss scale of float16, halved, at last below 1, where a non-finite gradient skips an update."""

    scale: Float[Array, ""]  # the factor
    sound: Int[Array, ""]  # updates since the scale last changed

    @staticmethod
    def first() -> "LossScale":
        """Return the initial scale."""
        return LossScale(jnp.asarray(FIRST_SCALE, jnp.float32), jnp.asarray(0, jnp.int32))

    def after(self, finite: Bool[Array, ""]) -> "LossScale":
        """Return the next scale, given whether the gradient was finite."""
        grows = self.sound + 1 >= GROWTH
        scale = jnp.where(finite, jnp.where(grows, 2 * self.scale, self.scale), self.scale / 2)
        return LossScale(scale, jnp.where(finite & ~grows, self.sound + 1, 0))


class TrainState(NamedTuple):
    """The state that an update changes."""

    params: Any  # the trained parameters, float32: θ, or a low-rank adapter
    opt_state: Any  # the optimizer's state
    healthy: Bool[Array, ""]  # false once a loss or gradient was not finite; the state no longer changes then
    ema: Any  # exponential moving average of the parameters, or None
    loss_scale: LossScale | None = None  # for float16 only


class StepMetrics(NamedTuple):
    """The metrics of an update."""

    loss: Float[Array, ""]  # nats per predicted token, without further losses
    tokens: Float[Array, ""]  # predicted tokens
    gradient_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    healthy: Bool[Array, ""]  # as in the state
    balance: Float[Array, ""] | None = None  # the balancing loss of experts times its coefficient, if there is one
    mtp: Float[Array, ""] | None = None  # the loss of the head for the token after the next, if there is one


def init_state(
    params: Any, optimizer: optax.GradientTransformation, *, ema_decay: float = 0.0, dtype: str = "float32"
) -> TrainState:
    """Return the state before the first update, with a moving average of the parameters unless `ema_decay` is 0."""
    copy = jax.tree.map(jnp.copy, params) if ema_decay else None  # a buffer may be donated only once
    scale = LossScale.first() if dtype == "float16" else None
    return TrainState(params, optimizer.init(params), jnp.asarray(True), copy, scale)


def batch_loss(objective: Objective, settings: Settings, *, N_V: int | None = None) -> Callable[..., Any]:
    """Return the function (params, batch, step, key, frozen, scale) → (losses per token, gradient, tokens) of a batch.

    With θ `frozen`, `params` are an adapter of it, and the gradient is its alone. Loss and gradient are multiplied by
    `scale`, and every part is divided by the weight of the whole batch; sequence r draws its dropout with
    ``fold_in(fold_in(key, step), r)``. So they do not depend on the number of parts, except by balancing losses.
    """

    def whole(params, batch, step, key, frozen=None, scale=None):
        tokens = objective.weights(batch).sum()
        weight = jnp.maximum(tokens, 1)
        keys = None
        if settings.dropout:
            key = jax.random.fold_in(key, step)
            keys = jax.vmap(by_own_key(jax.random.fold_in), in_axes=(None, 0))(key, jnp.arange(settings.batch_size))

        def part_loss(params, part, keys):
            theta = params if frozen is None else merged(frozen, params, scale_of(settings))
            smoothing = {"label_smoothing": settings.label_smoothing, "N_V": N_V}
            losses = objective.losses(cast(theta, settings.dtype), part, options_of(settings, keys), **smoothing)
            losses = jax.tree.map(lambda loss: loss / weight if scale is None else loss / weight * scale, losses)
            return losses.total, losses

        def loss_and_gradient(*arguments):
            (_, losses), gradient = jax.value_and_grad(part_loss, has_aux=True)(*arguments)
            return losses, gradient

        if settings.accumulation_steps == 1:
            return *loss_and_gradient(params, batch, keys), tokens
        # part i of n has the sequences i, i + n, …, so each device keeps its own
        n = settings.accumulation_steps
        parts = jax.tree.map(lambda a: jnp.moveaxis(a.reshape(-1, n, *a.shape[1:]), 1, 0), (dict(batch), keys))

        def add(total, part):
            return jax.tree.map(jnp.add, total, loss_and_gradient(params, *part)), None

        first = jax.tree.map(lambda a: a[0], parts)
        shapes = jax.eval_shape(loss_and_gradient, params, *first)
        zero = jax.tree.map(lambda s: jnp.zeros(s.shape, s.dtype), shapes)
        total, _ = jax.lax.scan(add, zero, parts)
        return *total, tokens

    return whole


def at_step(step: Int[Array, ""], opt_state: Any) -> Any:
    """Return the optimizer's state with its schedules at the number of a step: skipped updates do not delay them."""

    def of_node(node):
        return node._replace(count=jnp.asarray(step, node.count.dtype)) if is_schedule(node) else node

    def is_schedule(node):
        return isinstance(node, optax.ScaleByScheduleState)

    return jax.tree.map(of_node, opt_state, is_leaf=is_schedule)


def make_step(
    objective: Objective,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    settings: Settings,
    *,
    N_V: int | None = None,
) -> Callable[..., tuple[TrainState, StepMetrics]]:
    """Return the update (state, batch, step, key, frozen) → (state, metrics); tokens from N_V on are padding."""
    loss_and_gradient = batch_loss(objective, settings, N_V=N_V)

    def step(state, batch, step, key, frozen=None):
        scaling = state.loss_scale
        scale = None if scaling is None else scaling.scale
        losses, gradient, tokens = loss_and_gradient(state.params, batch, step, key, frozen, scale)
        if scale is not None:
            losses, gradient = jax.tree.map(lambda a: a / scale, (losses, gradient))
        loss = losses.nats
        norm = optax.tree.norm(gradient)
        finite = jnp.isfinite(loss) & jnp.isfinite(norm)
        if scaling is not None:
            scaling = scaling.after(finite)
        healthy = applied = state.healthy & finite
        if scaling is not None:  # a loss that is not finite overflowed in the forward pass, which no scale helps
            healthy = state.healthy & jnp.isfinite(loss) & (scaling.scale >= 1)
        updates, opt_state = optimizer.update(gradient, at_step(step, state.opt_state), state.params)
        params = optax.apply_updates(state.params, updates)
        ema = state.ema
        if ema is not None:  # at first a shorter average, which soon forgets the initial parameters
            decay = jnp.minimum(settings.ema_decay, (1 + step) / (10 + step)).astype(jnp.float32)
            ema = jax.tree.map(lambda a, p: decay * a + (1 - decay) * p, ema, params)
        new = TrainState(params, opt_state, healthy, ema, scaling)
        new = jax.tree.map(lambda after, before: jnp.where(applied, after, before), new, state)
        new = new._replace(healthy=healthy, loss_scale=scaling)
        return new, StepMetrics(loss, tokens, norm, jnp.asarray(schedule(step)), healthy, losses.balance, losses.mtp)

    return step
