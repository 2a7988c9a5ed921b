"""Start training from a trained model."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from algorithms.lines import MTP
from training.data.hub_names import HUB
from training.data.tokenizers import Tokenizer
from training.interchange import load_model
from training.interchange.names import as_run
from training.interchange.pretrained import TASK_OF, settings_of
from training.runs.directory import RunDirectory
from training.runs.trained_model import FROZEN, frozen_fingerprint
from training.settings import Settings, SettingsError
from training.tasks.classify import ClassifierParams
from training.tasks.gato_embedding import GatoParams
from training.tasks.low_rank import adapter_shapes
from training.tasks.models import init_model


class Start(NamedTuple):
    """The model that a run starts from."""

    name: str  # what `start_from` becomes: the run itself if an adapter is trained, for which it is read again
    sizes: dict[str, Any]  # settings that the model decides
    config: Any  # the model's
    tokenizer: Tokenizer  # the model's
    labels: tuple[str, ...]  # the model's classes, in order
    theta: Any  # the model's parameters
    fingerprints: dict[str, str]  # of the parameters, if the run trains an adapter

    def fitted(self, settings: Settings) -> "Start":
        """Return the model cut to the run's l_max, with a head for the token after the next if the run trains one it
        does not have; unchanged if the run trains an adapter. Raises SettingsError if the model has no such adapter.
        """
        if settings.lora_rank:  # an adapted model keeps its l_max
            adapter_shapes(self.theta, settings)
            return self
        theta = _shortened(self.theta, settings.l_max + self.config.variant.embedding.first_position)
        config = dataclasses.replace(self.config, l_max=settings.l_max)
        if settings.mtp_weight:
            variant = config.variant.but(mtp=MTP(weight=settings.mtp_weight))
            config = dataclasses.replace(config, variant=variant)
            new = functools.partial(init_model, task=settings.task, config=config, scheme=settings.init)
            mtp = jax.jit(lambda key: new(key).mtp)(jax.random.key(settings.seed)) if theta.mtp is None else theta.mtp
            theta = theta._replace(variant=variant, mtp=mtp)
        return self._replace(theta=theta, config=config)

    def params(self, labels: tuple[str, ...]) -> Any:
        """Return the initial parameters; for a classifier with other classes than the model's, W_c and b_c are 0."""
        if not isinstance(self.theta, ClassifierParams) or self.labels == labels:
            return self.theta
        d_e, dtype = self.config.d_e, self.theta.encoder.W_e.dtype
        return ClassifierParams(self.theta.encoder, jnp.zeros((len(labels), d_e), dtype), jnp.zeros(len(labels), dtype))


def start_from(settings: Settings, run_of: Callable[[str], Path] = as_run, lines: Sequence[str] = ()) -> Start:
    """Read the model that `settings.start_from` names; `run_of` finds the run of a name, and `lines` is as in
    `load_pretrained`. Raises SettingsError if the task trains another kind of model, and InterchangeError or RunError
    if it cannot be read.
    """
    adapts, name = bool(settings.lora_rank), settings.start_from
    path = str(run_of(name)) if adapts or name.startswith(HUB) else name
    if adapts:
        name = path
    elif name.startswith(HUB):
        name = RunDirectory(path).description().origin or name
    model = load_model(path, lines=lines)
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
        raise SettingsError(f"{name} holds a model of the task {model.task}, but this trains {trains}")
    return Start(name, settings_of(settings.task, config), config, model.tokenizer, model.labels, theta, fingerprints)


def _shortened(theta: Any, columns: int) -> Any:
    """Return the parameters with only the first `columns` positions."""
    if isinstance(theta, ClassifierParams):
        return theta._replace(encoder=_shortened(theta.encoder, columns))
    if isinstance(theta, GatoParams):
        return theta._replace(transformer=_shortened(theta.transformer, columns))
    if getattr(theta, "context", None) is not None:
        theta = theta._replace(context=_shortened(theta.context, columns))
    return theta if theta.W_p is None else theta._replace(W_p=theta.W_p[:, :columns])
