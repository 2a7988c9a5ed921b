"""Optimizers and learning rates by name, from optax.

| optimizer | is |
|---|---|
| `sgd` | the paper's: θ ← θ − η·∇loss |
| `adam` | Adam (Kingma and Ba 2015); β₁ = 0.9, β₂ = 0.98, ε = 10⁻⁹ as in Vaswani et al. 2017, §5.3 |
| `adamw` | Adam with decoupled weight decay of what `weight_decay_mask` names (not biases, norms or embeddings) |
| `lion` | the sign of a momentum (Chen et al. 2023), with the same weight decay |
| `adafactor` | Adam with a factored second moment of each matrix of `muon_dimensions`, and no first moment (Shazeer and
Stern 2018), to save memory; the scale and the clipping of an update are of each layer by itself |
| `muon` | orthogonalized momentum for each matrix of `muon_dimensions` (Jordan et al. 2024), with weight decay, times
√max(1, rows/columns); Adam for the rest |

| schedule | learning rate of step t = 1, 2, … |
|---|---|
| `constant` | η |
| `cosine` | half a cosine from η down to `final_fraction`·η at the last step |
| `linear` | a line from η down to `final_fraction`·η at the last step |
| `wsd` | η, and over the last fifth of the steps a line down to `final_fraction`·η (warmup, stable, decay) |
| `vaswani` | η · d_e^−0.5 · min(t^−0.5, t·warmup^−1.5) (Vaswani et al. 2017, §5.3) |

All but `vaswani` first rise linearly from 0 to η over the `warmup`.

To add an optimizer, add a function to `UPDATES`, its defaults to `training.settings.OPTIMIZERS`, and a line above.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import scale_by_muon

from algorithms import muon_dimensions, roles_of, weight_decay_mask
from algorithms.roles import layer_axes
from training.settings import Settings, decay_steps


def optimizer_from(settings: Settings) -> tuple[optax.Schedule, optax.GradientTransformation]:
    """Return the learning rate, as a function of the number of steps already done, and the optimizer of a run."""
    schedule = make_schedule(settings)
    optimizer = UPDATES[settings.optimizer](settings, schedule)
    if settings.clip_norm:
        optimizer = optax.chain(optax.clip_by_global_norm(settings.clip_norm), optimizer)
    return schedule, optimizer


def make_schedule(s: Settings) -> optax.Schedule:
    """Return the learning rate as a function of the number of steps already done."""
    eta, least, left = s.learning_rate, s.learning_rate * s.final_fraction, max(1, s.steps - s.warmup)
    if s.schedule == "vaswani":
        slope = max(s.warmup, 1) ** -1.5
        return lambda done: eta * s.d_e**-0.5 * jnp.minimum((done + 1.0) ** -0.5, (done + 1.0) * slope)
    after = {
        "constant": optax.constant_schedule(eta),
        "cosine": optax.cosine_decay_schedule(eta, left, s.final_fraction),
        "linear": _falling(eta, least, left, left),
        "wsd": _falling(eta, least, left, min(left, decay_steps(s.steps))),
    }[s.schedule]
    rate = optax.join_schedules([lambda t: eta * (t / max(1, s.warmup)), after], [s.warmup])
    return lambda done: rate(jnp.asarray(done + 1, float))


def _falling(eta: float, least: float, left: int, n: int) -> optax.Schedule:
    """Return η for `left` − n steps, and then a line down to `least`, which it reaches exactly.

    It counts the steps that remain: optax's line is η·(1 − t/n), where compiled programs round t/n to above 1.
    """
    return lambda t: least + (eta - least) * (jnp.clip(left - t, 0, n) / n)


def _adam(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adam(schedule, s.beta1, s.beta2, s.eps)


def _muon(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    def adam(rate):
        return _adam(s, lambda done: schedule(done) * (rate / s.learning_rate))

    kind = {"matrix": "matrix", "embedding": "embedding", "unembedding": "embedding"}
    matrices = optax.chain(
        scale_by_muon(beta=s.momentum, weight_dimension_numbers=muon_dimensions),
        optax.stateless(_scaled_by_shape),
        optax.add_decayed_weights(s.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )
    kinds: dict[Any, optax.GradientTransformation] = {
        "matrix": matrices,
        "embedding": adam(s.embedding_learning_rate),
        "vector": adam(s.vector_learning_rate),
    }
    return optax.partition(kinds, lambda params: jax.tree.map(lambda role: kind.get(role, "vector"), roles_of(params)))


def _scaled_by_shape(updates: Any, _: Any) -> Any:
    """Each update times √max(1, rows/columns)."""

    def scaled(update, of):
        rows, columns = (math.prod(update.shape[axis] for axis in axes) for axes in (of.output_axis, of.reduction_axis))
        return update * math.sqrt(max(1, rows / columns))

    return jax.tree.map(scaled, updates, muon_dimensions(updates))


def _adafactor(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    of_matrix = optax.chain(
        optax.scale_by_factored_rms(), optax.clip_by_block_rms(1.0), optax.scale_by_param_block_rms()
    )
    return optax.chain(_each_matrix(of_matrix), optax.scale_by_learning_rate(schedule))


def _each_matrix(inner: optax.GradientTransformation) -> optax.GradientTransformation:
    """Apply a transformation to each layer's part of every array, its heads joined to a matrix, and each expert's."""

    def alone(array: Any, of: Any, layers: int) -> Any:
        """The array with the matrices of its last two axes, or what a layer has in those behind the layers'."""
        axes = (of.output_axis, of.reduction_axis) if of else [(i,) for i in range(layers - array.ndim, 0)]
        sizes = [math.prod(array.shape[axis] for axis in joined) for joined in axes]
        return array.reshape(*array.shape[: array.ndim - sum(map(len, axes))], *sizes)

    def each(function: Any, array: Any, of: Any, layers: int) -> Any:
        for _ in range(array.ndim - 2 if of else layers):
            function = jax.vmap(function)
        return function

    def init(params):
        def of_leaf(p: Any, *kind: Any):
            p = alone(p, *kind)
            return each(inner.init, p, *kind)(p)

        return jax.tree.map(of_leaf, params, muon_dimensions(params), layer_axes(params))

    def update(updates, state, params=None):
        def of_leaf(u: Any, p: Any, state: Any, *kind: Any):
            ours, theirs = alone(u, *kind), alone(p, *kind)
            new, state = each(inner.update, ours, *kind)(ours, state, theirs)
            return new.reshape(u.shape), state

        pairs = jax.tree.map(of_leaf, updates, params, state, muon_dimensions(params), layer_axes(params))
        return tuple(jax.tree.map(lambda _, pair, i=i: pair[i], updates, pairs) for i in (0, 1))

    return optax.GradientTransformation(init, update)


UPDATES: dict[str, Callable[[Settings, optax.Schedule], optax.GradientTransformation]] = {
    "sgd": lambda s, rate: optax.sgd(rate),
    "adam": _adam,
    "adamw": lambda s, rate: optax.adamw(
        rate, s.beta1, s.beta2, s.eps, weight_decay=s.weight_decay, mask=weight_decay_mask
    ),
    "lion": lambda s, rate: optax.lion(rate, s.beta1, s.beta2, weight_decay=s.weight_decay, mask=weight_decay_mask),
    "adafactor": _adafactor,
    "muon": _muon,
}
"""The optimizers: functions of the settings and the schedule."""
