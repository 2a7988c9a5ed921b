"""Optimizers and learning rates by name, from optax.

| optimizer | is |
|---|---|
| `sgd` | the paper's: θ ← θ − η·∇loss |
| `adam` | Adam with β₁ = 0.9, β₂ = 0.98, ε = 10⁻⁹ (Vaswani et al. 2017, §5.3) |
| `adamw` | Adam with decoupled weight decay, which spares biases, norms and embeddings |

| schedule | learning rate of step t = 1, 2, … |
|---|---|
| `constant` | η |
| `cosine` | linear from 0 to η over the warm-up, then half a cosine down to `final_fraction`·η at the last step |
| `vaswani` | η · d_e^−0.5 · min(t^−0.5, t·warmup^−1.5) (Vaswani et al. 2017, §5.3) |
"""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from training.settings import OPTIMIZERS, SCHEDULES

VASWANI_WARMUP = 4000


def make_schedule(
    name: str, learning_rate: float, *, steps: int, warmup: int, final_fraction: float, d_e: int
) -> optax.Schedule:
    """Return the learning rate as a function of the number of steps already done.

    Args:
        name: one of `SCHEDULES`.
        learning_rate: η.
        steps: of the whole training.
        warmup: steps over which the rate rises; 0 is a tenth of all steps, and 4000 for `vaswani`.
        final_fraction: of η, what is left at the last step of `cosine`.
        d_e: dimensions of the embedding, for `vaswani`.

    Raises:
        ValueError: an unknown name, or a warm-up that the schedule cannot have.
    """
    if name not in SCHEDULES:
        raise ValueError(f"there is no schedule {name!r}; choose one of {', '.join(SCHEDULES)}")
    if name == "constant":
        return optax.constant_schedule(learning_rate)
    if name == "vaswani":
        warmup = warmup or VASWANI_WARMUP
        return lambda done: learning_rate * d_e**-0.5 * jnp.minimum((done + 1.0) ** -0.5, (done + 1.0) * warmup**-1.5)
    warmup = warmup or -(-steps // 10)
    if not 0 < warmup <= steps:
        raise ValueError(f"warmup is {warmup}, expected at most the {steps} steps of the training")

    def cosine(done):
        t = done + 1.0
        fallen = jnp.clip((t - warmup) / max(steps - warmup, 1), 0, 1)
        share = final_fraction + (1 - final_fraction) * 0.5 * (1 + jnp.cos(jnp.pi * fallen))
        return learning_rate * jnp.where(t < warmup, t / warmup, share)

    return cosine


def decays(params: Any) -> Any:
    """Return which arrays weight decay is for: matrices, but neither embeddings nor positions."""

    def of_leaf(path, leaf):
        name = path[-1].name
        return name.startswith("W_") and name not in ("W_e", "W_p", "W_t")

    return jax.tree_util.tree_map_with_path(of_leaf, params)


def make_optimizer(
    name: str, schedule: optax.Schedule, *, weight_decay: float = 0.0, clip_norm: float = 0.0, beta2: float = 0.98
) -> optax.GradientTransformation:
    """Return an optimizer.

    Args:
        name: one of `OPTIMIZERS`.
        schedule: the learning rate.
        weight_decay: λ of `adamw`; the others have none.
        clip_norm: largest global norm of a gradient; 0 leaves gradients as they are.
        beta2: β₂ of `adam` and `adamw`.

    Raises:
        ValueError: an unknown name, or weight decay for an optimizer that has none.
    """
    if name not in OPTIMIZERS:
        raise ValueError(f"there is no optimizer {name!r}; choose one of {', '.join(OPTIMIZERS)}")
    if weight_decay and name != "adamw":
        raise ValueError(f"weight_decay is {weight_decay}, but {name} has none; choose adamw, or 0")
    b1, eps = 0.9, 1e-9
    if name == "sgd":
        optimizer = optax.sgd(schedule)
    elif name == "adam":
        optimizer = optax.adam(schedule, b1, beta2, eps)
    else:
        optimizer = optax.adamw(schedule, b1, beta2, eps, weight_decay=weight_decay, mask=decays)
    return optax.chain(optax.clip_by_global_norm(clip_norm), optimizer) if clip_norm else optimizer
