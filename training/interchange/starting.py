"""Training that starts from a trained model."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms import GatoParams
from algorithms.model.variants import name_of
from training.data.tokenizers import Tokenizer
from training.interchange import TASK_OF, is_ours, load_model
from training.runs.directory import FROZEN, frozen_fingerprint
from training.settings import Settings, SettingsError
from training.tasks import TASKS
from training.tasks.classify import ClassifierParams
from training.tasks.low_rank import adapter_shapes


class Start(NamedTuple):
    """The starting point of a training."""

    settings: Settings  # those of the run, with the sizes of the model
    config: Any  # the model's, with the run's l_max and dropout
    tokenizer: Tokenizer  # the model's
    labels: tuple[str, ...]  # its classes, by number
    theta: Any  # its parameters, for the run's l_max; all of them where the run adapts them
    fingerprints: dict[str, str]  # of the parameters, where the run adapts them

    def params(self, labels: tuple[str, ...]) -> Any:
        """Return the parameters to start with; a classifier of other classes begins with W_c and b_c at 0."""
        if self.settings.task != "classify" or self.labels == labels:
            return self.theta
        d_e, dtype = self.config.d_e, self.theta.encoder.W_e.dtype
        return ClassifierParams(self.theta.encoder, jnp.zeros((len(labels), d_e), dtype), jnp.zeros(len(labels), dtype))


def start_from(settings: Settings, given: Collection[str]) -> Start:
    """Read the model that `settings.start_from` names; the `given` settings cannot be replaced by the model's. Raises
    SettingsError if the model is of another kind than the task trains, or a size that was asked for is not its, and
    InterchangeError or RunError if it cannot be read.
    """
    adapts = bool(settings.lora_rank)
    if adapts and not is_ours(Path(settings.start_from)):
        raise SettingsError(
            f"--from: expected the directory of a run beside --lora-rank, got {settings.start_from}; convert what is "
            "there first, with scripts/convert.py"
        )
    model = load_model(settings.start_from)
    fingerprints = {FROZEN: frozen_fingerprint(model.theta)} if adapts else {}
    theta = jax.tree.map(lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float32)), model.theta)
    config = model.config
    if settings.task == "classify" and model.task == "e":
        theta = theta._replace(W_f=None, b_f=None, norm=None, W_u=None, b_u=None)
        variant = config.variant.but(head=False, unembedding=config.variant.unembedding.but(bias=False))
        config = dataclasses.replace(config, variant=variant, tied=True)
        theta = ClassifierParams(theta, jnp.zeros((0, config.d_e)), jnp.zeros(0))  # `params` knows the classes
    elif settings.task != model.task:
        trains = next((params.__name__ for params, task in TASK_OF.items() if task == settings.task), settings.task)
        raise SettingsError(f"{settings.start_from} holds a model of the task {model.task}, but this trains {trains}")
    if settings.l_max > config.l_max:
        raise SettingsError(f"l_max is {settings.l_max}, but {settings.start_from} reads at most {config.l_max} tokens")
    variant = config.variant.but(dropout=settings.dropout)
    config = dataclasses.replace(config, variant=variant)
    if adapts:
        adapter_shapes(theta, settings)
    else:  # the model that is adapted reads as much as it did
        theta = _shortened(theta, settings.l_max + config.variant.embedding.first_position)
        config = dataclasses.replace(config, l_max=settings.l_max)
    sizes = {name: getattr(config, name) for name in TASKS[settings.task].all_settings() if hasattr(config, name)}
    sizes["l_max"] = settings.l_max
    sizes["variant"] = name_of(variant) or "PAPER"
    asked = {name: getattr(settings, name) for name in sorted({*given} & sizes.keys())}
    changed = [f"{name} {sizes[name]} instead of {size}" for name, size in asked.items() if size != sizes[name]]
    if changed:
        raise SettingsError(f"{settings.start_from} has other sizes ({'; '.join(changed)}): leave them out")
    settings = dataclasses.replace(settings, **sizes)
    return Start(settings, config, model.tokenizer, model.labels, theta, fingerprints)


def _shortened(theta: Any, columns: int) -> Any:
    """The same parameters with this many positions."""
    if isinstance(theta, ClassifierParams):
        return theta._replace(encoder=_shortened(theta.encoder, columns))
    if isinstance(theta, GatoParams):
        return theta._replace(transformer=_shortened(theta.transformer, columns))
    if getattr(theta, "context", None) is not None:
        theta = theta._replace(context=_shortened(theta.context, columns))
    return theta if theta.W_p is None else theta._replace(W_p=theta.W_p[:, :columns])
