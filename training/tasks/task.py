"""The record of a task; training code reads it, and never branches on the task's name."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

from algorithms.model.sizes import TransformerConfig
from training.settings import SETTINGS, Setting, Settings
from training.tasks.objectives import Objective


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """A task."""

    name: str  # on the command line and in config.json
    summary: str  # one line for --help
    records: Literal["text", "pairs", "labeled"]  # kind of training data
    config: type[TransformerConfig]  # class of the model's configuration
    init: Callable[..., Any]  # initializer: ``init(key, config, scheme=…)``, with ``N_C=…`` if the records are labeled
    objective: Objective  # the loss to minimize
    flops: Callable[[Any, int], int]  # (sizes, tokens) → FLOPs of a sequence's matrix products in the forward pass
    settings: tuple[str, ...]  # names of its settings, in addition to the common ones
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # defaults that differ from the common ones
    extra_tokens: int = 0  # tokens of the model after the tokenizer's

    def all_settings(self) -> dict[str, Setting]:
        """Return the task's settings, by name."""
        return {name: s for name, s in SETTINGS.items() if s.common or name in self.settings}

    def default(self, setting: str) -> Any:
        """Return the default of a setting."""
        return self.defaults.get(setting, Settings.__dataclass_fields__[setting].default)
