"""The model of each task: its configuration, also as JSON, and its initial parameters."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
from jax import Array
from jaxtyping import Key

from algorithms.lines import MTP
from algorithms.model.sizes import TransformerConfig
from training.settings import SETTINGS, Settings
from training.tasks import TASKS
from training.tasks.own_lines import variant_from_json, variant_named


def model_config(settings: Settings, N_V: int, lines: Sequence[str] = ()) -> Any:
    """Return the configuration of the model that a run trains, or raise ValueError; `lines` as in `own_lines`."""
    config, N_V = TASKS[settings.task].config, N_V + TASKS[settings.task].extra_tokens
    names = [field.name for field in dataclasses.fields(config) if field.name in SETTINGS]
    sizes = {name: getattr(settings, name) for name in names}
    sizes["H_kv"] = settings.H_kv or settings.H
    if "d_in" in sizes:
        sizes["d_in"] = settings.d_in or settings.d_e
    variant = variant_named(settings.variant, lines)
    if settings.shared_layers or variant.shared_layers > 1:
        variant = variant.but(shared_layers=settings.shared_layers or settings.L)
    if settings.mtp_weight:
        variant = variant.but(mtp=MTP(weight=settings.mtp_weight))
    return config(**{**sizes, "N_V": N_V, "variant": variant})


def check_sizes(settings: Settings, lines: Sequence[str] = ()) -> None:
    """Check the model's sizes before its vocabulary is known, or raise ValueError if they do not fit together."""
    model_config(settings, max(settings.N_V, 4), lines)


def init_model(key: Key[Array, ""], task: str, config: Any, *, scheme: str, N_C: int = 0) -> Any:
    """Return the initial parameters of a run, in float32."""
    classes = {"N_C": N_C} if TASKS[task].records == "labeled" else {}
    return TASKS[task].init(key, config, scheme=scheme, **classes)


def model_shapes(task: str, config: Any, *, N_C: int = 0) -> Any:
    """Return the parameters as shapes and dtypes, without allocating arrays."""
    return jax.eval_shape(lambda: init_model(jax.random.key(0), task, config, scheme="glorot", N_C=N_C))


def config_to_json(config: TransformerConfig) -> dict[str, Any]:
    """Return a configuration as JSON."""
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {**fields, "variant": config.variant.to_json()}


def config_from_json(task: str, state: dict[str, Any], lines: Sequence[str] = ()) -> TransformerConfig:
    """Return the configuration that `config_to_json` described, or raise TypeError, KeyError or ValueError."""
    return TASKS[task].config(**{**state, "variant": variant_from_json(state["variant"], lines)})
