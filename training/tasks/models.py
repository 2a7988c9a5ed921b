"""The model of each task: its configuration, how it starts, and both as JSON."""

import dataclasses
from typing import Any, cast

import jax
from jax import Array
from jaxtyping import Key

from algorithms import (
    BERT,
    GPT2,
    PAPER,
    VASWANI,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    Variant,
    init_d_transformer,
    init_e_transformer,
    init_ed_transformer,
)
from algorithms.model.initialization import Scheme
from training.settings import Settings
from training.tasks.classification import init_classifier

VARIANTS = {variant.name: variant for variant in (PAPER, VASWANI, BERT, GPT2)}
CONFIGS: dict[str, type] = {
    "d": DTransformerConfig,
    "e": ETransformerConfig,
    "ed": EDTransformerConfig,
    "classify": ETransformerConfig,
}

ModelConfig = DTransformerConfig | ETransformerConfig | EDTransformerConfig


def model_config(settings: Settings, N_V: int) -> ModelConfig:
    """Return the configuration of the model that a run trains.

    Args:
        settings: of the run.
        N_V: size of the tokenizer's vocabulary.

    Raises:
        ValueError: the sizes do not fit together.
    """
    layers = ("L_enc", "L_dec") if settings.task == "ed" else ("L",)
    sizes = {name: getattr(settings, name) for name in ("l_max", "H", "d_e", "d_mlp", "tied", *layers)}
    variant = dataclasses.replace(VARIANTS[settings.variant], dropout=settings.dropout)
    return CONFIGS[settings.task](N_V=N_V, variant=variant, **sizes)


def check_sizes(settings: Settings) -> None:
    """Check what can be checked of a model before its vocabulary is known.

    Raises:
        ValueError: the sizes do not fit together.
    """
    model_config(settings, max(settings.N_V, 4))


def init_model(key: Key[Array, ""], task: str, config: Any, *, scheme: str, N_C: int = 0) -> Any:
    """Return the parameters that a run begins with, in float32.

    Args:
        key: randomness, consumed.
        task: the run's.
        config: the model's.
        scheme: how the matrices are drawn.
        N_C: number of classes, for classification.
    """
    drawn = cast(Scheme, scheme)
    if task == "classify":
        return init_classifier(key, config, N_C=N_C, scheme=drawn)
    init = {"d": init_d_transformer, "e": init_e_transformer, "ed": init_ed_transformer}[task]
    return init(key, config, scheme=drawn)


def model_shapes(task: str, config: Any, *, N_C: int = 0) -> Any:
    """Return the parameters' shapes and dtypes in their classes, without any array."""
    return jax.eval_shape(lambda: init_model(jax.random.key(0), task, config, scheme="glorot", N_C=N_C))


def config_to_json(config: ModelConfig) -> dict[str, Any]:
    """Return a configuration as JSON."""
    return dataclasses.asdict(config)


def config_from_json(task: str, state: dict[str, Any]) -> ModelConfig:
    """Return the configuration that `config_to_json` described.

    Raises:
        TypeError, KeyError, ValueError: it is not one.
    """
    return CONFIGS[task](**{**state, "variant": Variant(**state["variant"])})
