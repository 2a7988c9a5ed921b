"""Optimizers and learning rates by name, from optax.

| optimizer | is |
|---|---|
| `sgd` | the paper's: θ ← θ − η·∇loss |
| `adam` | Adam (Kingma and Ba 2015); β₁ = 0.9, β₂ = 0.98, ε = 10⁻⁹ as in Vaswani et al. 2017, §5.3 |
| `adamw` | Adam with decoupled weight decay of the weight matrices (not biases, norms or embeddings) |
| `lion` | the sign of a momentum (Chen et al. 2023), with the same weight decay |
| `adafactor` | Adam with a factored second moment and no first moment (Shazeer and Stern 2018), to save memory |
| `muon` | orthogonalized momentum for each weight matrix (Jordan et al. 2024), with weight decay; Adam for the rest |

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

import functools
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
"""Lookup tables of tokens, positions or classes, one column or row for each."""
HEADS = tuple(name for name in AttentionParams._fields if name.startswith("W_"))
"""Matrices stored head by head, which together are one matrix."""


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
    """Return which arrays decay: matrices and kernels, except embeddings of tokens and positions."""
    spared = ("W_e", "W_p", "W_t", "W_row", "W_column")
    return _map_by_name(lambda name, _: (_is_matrix(name) or name.startswith("K_")) and name not in spared, params)


def _map_by_name(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Map a function of the symbol and the array over a tree of parameters."""
    return jax.tree_util.tree_map_with_path(lambda path, leaf: function(path[-1].name, leaf), tree)


def _is_matrix(name: str) -> bool:
    return name.startswith("W_") or name in LowRank._fields


def _adam(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    return optax.adam(schedule, s.beta1, s.beta2, s.eps)


def _muon(s: Settings, schedule: optax.Schedule) -> optax.GradientTransformation:
    def adam(rate):
        return _adam(s, lambda done: schedule(done) * (rate / s.learning_rate))

    def columns_and_rows(name, _):  # of one matrix, to which all heads of a layer belong
        return MuonDimensionNumbers(reduction_axis=-1, output_axis=(-3, -2) if name in HEADS else -2)

    def kind(name, _):
        return "embedding" if name in EMBEDDINGS else "matrix" if _is_matrix(name) else "vector"

    matrices = optax.chain(
        scale_by_muon(beta=s.momentum, weight_dimension_numbers=functools.partial(_map_by_name, columns_and_rows)),
        optax.stateless(_scaled_by_shape),
        optax.add_decayed_weights(s.weight_decay),
        optax.scale_by_learning_rate(schedule),
    )
    kinds: dict[Any, optax.GradientTransformation] = {
        "matrix": matrices,
        "embedding": adam(s.embedding_learning_rate),
        "vector": adam(s.vector_learning_rate),
    }
    return optax.partition(kinds, functools.partial(_map_by_name, kind))


def _scaled_by_shape(updates: Any, _: Any) -> Any:
    """Each update times √max(1, rows/columns)."""

    def scaled(name, update):
        rows = math.prod(update.shape[-3:-1]) if name in HEADS else update.shape[-2]
        return update * math.sqrt(max(1, rows / update.shape[-1]))

    return _map_by_name(scaled, updates)


UPDATES: dict[str, Callable[[Settings, optax.Schedule], optax.GradientTransformation]] = {
    "sgd": lambda s, rate: optax.sgd(rate),
    "adam": _adam,
    "adamw": lambda s, rate: optax.adamw(rate, s.beta1, s.beta2, s.eps, weight_decay=s.weight_decay, mask=decays),
    "lion": lambda s, rate: optax.lion(rate, s.beta1, s.beta2, weight_decay=s.weight_decay, mask=decays),
    "adafactor": lambda s, rate: optax.adafactor(rate),
    "muon": _muon,
}
"""The optimizers: functions of the settings and the schedule."""
