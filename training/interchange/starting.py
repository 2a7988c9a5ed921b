"""Start training from a trained model."""

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms import GatoParams
from training.data.tokenizers import Tokenizer
from training.interchange import TASK_OF, load_model, settings_of
from training.interchange.hub import HUB
from training.interchange.names import as_run
from training.runs.directory import FROZEN, frozen_fingerprint
from training.settings import Settings, SettingsError
from training.tasks.classify import ClassifierParams
from training.tasks.low_rank import adapter_shapes


class Start(NamedTuple):
    """The starting point of a run."""

    settings: Settings  # the run's, with the model's sizes
    config: Any  # the model's, with the run's l_max
    tokenizer: Tokenizer  # the model's
    labels: tuple[str, ...]  # the model's classes, in order
    theta: Any  # the model's parameters, cut to the run's l_max unless the run trains an adapter
    fingerprints: dict[str, str]  # of the parameters, if the run trains an adapter

    def params(self, labels: tuple[str, ...]) -> Any:
        """Return the initial parameters; for a classifier with other classes than the model's, W_c and b_c are 0."""
        if self.settings.task != "classify" or self.labels == labels:
            return self.theta
        d_e, dtype = self.config.d_e, self.theta.encoder.W_e.dtype
        return ClassifierParams(self.theta.encoder, jnp.zeros((len(labels), d_e), dtype), jnp.zeros(len(labels), dtype))


def start_from(settings: Settings, given: Collection[str], run_of: Callable[[str], Path] = as_run) -> Start:
    """Read the model that `settings.start_from` names. `given` names the settings that the user chose, which the
    model's cannot replace; `run_of` finds the run of a name.

    Raises:
        SettingsError: the task trains another kind of model, or the user chose a size that the model does not have.
        InterchangeError, RunError: the model cannot be read.
    """
    adapts = bool(settings.lora_rank)
    name = settings.start_from
    if adapts or name.startswith(HUB):
        name = str(run_of(name))
    if adapts:  # the model is read again whenever the run is loaded
        settings = dataclasses.replace(settings, start_from=name)
    model = load_model(name)
    fingerprints = {FROZEN: frozen_fingerprint(model.theta)} if adapts else {}
    theta = jax.tree.map(lambda a: a.astype(jnp.promote_types(a.dtype, jnp.float32)), model.theta)
    config = model.config
    if settings.task == "classify" and model.task == "e":
        variant = config.variant.but(head=False, unembedding=config.variant.unembedding.but(bias=False))
        theta = theta._replace(W_f=None, b_f=None, norm=None, W_u=None, b_u=None, variant=variant)
        config = dataclasses.replace(config, variant=variant, tied=True)
        theta = ClassifierParams(theta, jnp.zeros((0, config.d_e)), jnp.zeros(0))  # `params` adds the classes
    elif settings.task != model.task:
        trains = next((params.__name__ for params, task in TASK_OF.items() if task == settings.task), settings.task)
        raise SettingsError(f"{settings.start_from} holds a model of the task {model.task}, but this trains {trains}")
    if settings.l_max > config.l_max:
        raise SettingsError(f"l_max is {settings.l_max}, but {settings.start_from} reads at most {config.l_max} tokens")
    if adapts:  # an adapted model keeps its l_max
        adapter_shapes(theta, settings)
    else:
        theta = _shortened(theta, settings.l_max + config.variant.embedding.first_position)
        config = dataclasses.replace(config, l_max=settings.l_max)
    sizes = settings_of(settings.task, config) | {"l_max": settings.l_max}
    asked = {name: getattr(settings, name) for name in sorted({*given} & sizes.keys())}
    changed = [f"{name} {sizes[name]} instead of {size}" for name, size in asked.items() if size != sizes[name]]
    if changed:
        raise SettingsError(f"{settings.start_from} has other sizes ({'; '.join(changed)}): leave them out")
    settings = dataclasses.replace(settings, **sizes)
    return Start(settings, config, model.tokenizer, model.labels, theta, fingerprints)


def _shortened(theta: Any, columns: int) -> Any:
    """Return the parameters with only the first `columns` positions."""
    if isinstance(theta, ClassifierParams):
        return theta._replace(encoder=_shortened(theta.encoder, columns))
    if isinstance(theta, GatoParams):
        return theta._replace(transformer=_shortened(theta.transformer, columns))
    if getattr(theta, "context", None) is not None:
        theta = theta._replace(context=_shortened(theta.context, columns))
    return theta if theta.W_p is None else theta._replace(W_p=theta.W_p[:, :columns])
