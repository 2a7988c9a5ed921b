"""Optimizers and learning rates by name, from optax.

| optimizer | is |
|---|---|
| `sgd` | the paper's: θ ← θ − η·∇loss |
| `adam` | Adam (Kingma and Ba 2015); with β₁ = 0.9, β₂ = 0.98, ε = 10⁻⁹ that of Vaswani et al. 2017, §5.3 |
| `adamw` | Adam with decoupled weight decay, which spares biases, norms and embeddings |
| `lion` | the sign of a momentum (Chen et al. 2023), with the same weight decay |
| `adafactor` | Adam with a factored second moment and no first one (Shazeer and Stern 2018), to save memory |
| `muon` | for each weight matrix an orthogonalized momentum (Jordan et al. 2024) with weight decay; Adam for the rest |

| schedule | learning rate of step t = 1, 2, … |
|---|---|
| `constant` | η |
| `cosine` | half a cosine from η down to `final_fraction`·η at the last step |
| `linear` | a line from η down to `final_fraction`·η at the last step |
| `wsd` | η, and over the last fifth of the steps a line down to `final_fraction`·η (warm-up, stable, decay) |
| `vaswani` | η · d_e^−0.5 · min(t^−0.5, t·warmup^−1.5) (Vaswani et al. 2017, §5.3) |

All but `vaswani` first rise in a line from 0 to η over the `warmup`.

A new optimizer is a function in `UPDATES`, its defaults in `training.settings.OPTIMIZERS`, and a line above.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from algorithms import AttentionParams
from training.settings import Settings, decay_steps
from training.tasks.low_rank import LowRank

EMBEDDINGS = ("W_e", "W_p", "W_u", "W_c", "W_row", "W_column")
"""Matrices that look tokens, positions or classes up, one column or row for each."""
HEADS = tuple(name for name in AttentionParams._fields if name.startswith("W_"))
"""Matrices that are stored head by head: together they are one matrix."""
OF_LOW_RANK = LowRank._fields
"""Matrices whose product is added to another one."""


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
    fall = min(left, decay_steps(s.steps))
    if s.schedule == "vaswani":
        slope = max(s.warmup, 1) ** -1.5
        return lambda done: eta * s.d_e**-0.5 * jnp.minimum((done + 1.0) ** -0.5, (done + 1.0) * slope)
    after = {
        "constant": optax.constant_schedule(eta),
        "cosine": optax.cosine_decay_schedule(eta, left, s.final_fraction),
        "linear": optax.linear_schedule(eta, least, left),
        "wsd": optax.linear_schedule(eta, least, fall, left - fall),
    }[s.schedule]
    rate = optax.join_schedules([optax.linear_schedule(0.0, eta, s.warmup), after], [s.warmup])
    return lambda done: rate(done + 1)


def decays(params: Any) -> Any:
    """Return which arrays weight decay is for: matrices, but neither embeddings nor positions."""

    def of_leaf(path, leaf):
        name = path[-1].name
        return (_is_matrix(name) or name.startswith("K_")) and name not in ("W_e", "W_p", "W_t", "W_row", "W_column")

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def _is_matrix(name: str) -> bool:
    return name.startswith("W_") or name in OF_LOW_RANK


def _adam(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adam(schedule, s.beta1, s.beta2, s.eps)


def _adamw(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adamw(schedule, s.beta1, s.beta2, s.eps, weight_decay=s.weight_decay, mask=decays)


def _lion(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.lion(schedule, s.beta1, s.beta2, weight_decay=s.weight_decay, mask=decays)


def _adafactor(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adafactor(schedule)


def _muon(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    def adam(rate):
        return _adam(s, lambda done: schedule(done) * (rate / s.learning_rate))

    matrices = optax.chain(
        scale_by_muon(beta=s.momentum, weight_dimension_numbers=_matrices),
        optax.stateless(_scaled_by_shape),
        optax.add_decayed_weights(s.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )
    kinds: dict[Any, optax.GradientTransformation] = {
        "matrix": matrices,
        "embedding": adam(s.embedding_learning_rate),
        "vector": adam(s.vector_learning_rate),
    }
    return optax.partition(kinds, _kinds)


def _kinds(params: Any) -> Any:
    """The kind of update that Muon uses for each array."""

    def of_leaf(path, _):
        name = path[-1].name
        return "embedding" if name in EMBEDDINGS else "matrix" if _is_matrix(name) else "vector"

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def _matrices(arrays: Any) -> Any:
    """Which axes of the stacked arrays are rows and columns of one matrix; those of a layer's heads are one."""

    def of_leaf(path, _):
        return MuonDimensionNumbers(reduction_axis=-1, output_axis=(-3, -2) if path[-1].name in HEADS else -2)

    return jax.tree_util.tree_map_with_path(of_leaf, arrays)


def _scaled_by_shape(updates: Any, _: Any) -> Any:
    """Each update times √max(1, rows/columns)."""

    def of_leaf(path, update):
        rows = math.prod(update.shape[-3:-1]) if path[-1].name in HEADS else update.shape[-2]
        return update * math.sqrt(max(1, rows / update.shape[-1]))

    return jax.tree_util.tree_map_with_path(of_leaf, updates)


UPDATES: dict[str, Callable[[Settings, optax.Schedule], optax.GradientTransformation]] = {
    "sgd": lambda s, schedule: optax.sgd(schedule),
    "adam": _adam,
    "adamw": _adamw,
    "lion": _lion,
    "adafactor": _adafactor,
    "muon": _muon,
}
"""What makes updates of gradients, by the name of the optimizer."""
