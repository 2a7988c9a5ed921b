"""The settings of a training run: every one with a default for each task, a sentence of help, and a check.

settings = default_settings("d")
settings = settings_from({"L": 6}, task="d")            # from a file or from flags; anything else is an error
settings.to_json()
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

TASKS = ("d", "e", "ed", "classify")
VARIANTS = ("PAPER", "VASWANI", "BERT", "GPT2")
OPTIMIZERS = ("sgd", "adam", "adamw")
SCHEDULES = ("constant", "cosine", "vaswani")
SHARDINGS = ("none", "data", "fsdp")


class SettingsError(ValueError):
    """A setting is unknown, of the wrong kind, or impossible; the message is one sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """What the command line needs to know of a setting.

    Attributes:
        help: a sentence.
        tasks: those that have it.
        choices: its values, if there are few.
        defaults: for tasks whose default is another than the field's.
        continues: whether a run may go on with another value, since it changes no number.
    """

    help: str
    tasks: tuple[str, ...] = TASKS
    choices: tuple[str, ...] | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    continues: bool = False


def _setting(default: Any, sentence: str, **options: Any) -> Any:
    return dataclasses.field(default=default, metadata={"setting": Setting(help=sentence, **options)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run; `SETTINGS` describes each."""

    task: str
    # data
    data: tuple[str, ...] = _setting(
        ("docs",),
        "a named data set (training/data/corpora lists them), or files",
        defaults={"ed": ("pronunciation",), "classify": ("sms-spam",)},
    )
    validation_data: tuple[str, ...] = _setting(
        (), "files to validate on; without them, a part of the data is held out"
    )
    tokenizer: str = _setting(
        "bpe",
        "bytes, characters, words or bpe (built from the training data), or the path of a tokenizer",
        defaults={"e": "characters", "ed": "characters"},
    )
    N_V: int = _setting(2048, "size of the vocabulary that words and bpe aim at, with the three special tokens")
    l_max: int = _setting(128, "longest sequence, in tokens", defaults={"e": 64, "ed": 48})
    rows: str = _setting(
        "packed",
        "how documents become sequences: cut into chunks, cut as one text into windows, or several packed in a row",
        tasks=("d",),
        choices=("chunks", "windows", "packed"),
    )
    masking: str = _setting(
        "paper", "how tokens are hidden: Algorithm 12's rule or BERT's", tasks=("e",), choices=("paper", "bert")
    )
    p_mask: float = _setting(0.15, "probability to hide a token", tasks=("e",))
    # model
    variant: str = _setting(
        "PAPER",
        "the pseudocode, or the published model that differs from it",
        choices=VARIANTS,
        defaults={"e": "BERT"},
    )
    L: int = _setting(4, "layers", tasks=("d", "e", "classify"), defaults={"e": 2, "classify": 2})
    L_enc: int = _setting(2, "layers of the encoder", tasks=("ed",))
    L_dec: int = _setting(2, "layers of the decoder", tasks=("ed",))
    H: int = _setting(4, "heads")
    d_e: int = _setting(128, "dimensions of the residual stream", defaults={"classify": 64})
    d_mlp: int = _setting(512, "hidden units of an MLP", defaults={"classify": 256})
    tied: bool = _setting(True, "whether the unembedding is the transposed embedding")
    init: str = _setting("gpt2", "how parameters start", choices=("glorot", "gpt2"), defaults={"e": "glorot"})
    dropout: float = _setting(
        0.0, "probability to drop an attention weight or an activation of an MLP", defaults={"classify": 0.1}
    )
    # optimization
    steps: int = _setting(600, "updates of the parameters", defaults={"e": 2000, "ed": 2500, "classify": 300})
    batch_size: int = _setting(16, "sequences in an update", defaults={"e": 64, "ed": 64, "classify": 32})
    accumulation_steps: int = _setting(1, "parts that a batch is computed in, one after another, to save memory")
    seed: int = _setting(0, "decides parameters, order of the data, masks and dropout")
    optimizer: str = _setting("adamw", "the update rule", choices=OPTIMIZERS)
    learning_rate: float = _setting(
        4e-3,
        "its largest learning rate (with the schedule vaswani, a factor)",
        defaults={"e": 2e-3, "ed": 3e-3, "classify": 1e-3},
    )
    schedule: str = _setting("cosine", "how the learning rate changes", choices=SCHEDULES)
    warmup: int = _setting(0, "steps over which the learning rate rises; 0: a tenth of all, 4000 for vaswani")
    final_fraction: float = _setting(0.02, "share of the learning rate that cosine ends with")
    beta2: float = _setting(0.98, "decay rate of Adam's second moment")
    weight_decay: float = _setting(0.1, "of adamw; biases, norms and embeddings are spared")
    clip_norm: float = _setting(1.0, "largest global norm of a gradient; 0 leaves gradients as they are")
    label_smoothing: float = _setting(0.0, "share of the target that is spread over all tokens")
    ema_decay: float = _setting(
        0.0,
        "decay of an exponential moving average of the parameters, which is then what is evaluated and kept; 0: none",
    )
    dtype: str = _setting(
        "float32", "of the computation; parameters and optimizer stay float32", choices=("float32", "bfloat16")
    )
    remat: bool = _setting(
        False, "whether to compute each layer's activations again in the backward pass, to save memory"
    )
    # running
    sharding: str = _setting(
        "none",
        "one device; or all of this process, with the batch split among them, or the batch and the parameters",
        choices=SHARDINGS,
        continues=True,
    )
    log_every: int = _setting(1, "steps between two lines of metrics.jsonl")
    eval_every: int = _setting(100, "steps between two evaluations on held-out data")
    eval_batches: int = _setting(
        32, "batches of an evaluation on the way, 0 for all; the last one is always on all held-out data"
    )
    patience: int = _setting(
        0, "evaluations without a better loss after which to stop, keeping the best parameters; 0: never"
    )
    explosion: float = _setting(10.0, "stop where the loss exceeds a uniform guess's so many times")
    checkpoint_every: int = _setting(200, "steps between two checkpoints", continues=True)
    max_to_keep: int = _setting(2, "checkpoints to keep", continues=True)
    tensorboard: bool = _setting(True, "whether to write TensorBoard's event files, too", continues=True)
    profile: bool = _setting(False, "whether to write a trace of some steps to DIR/profile", continues=True)
    peak: float = _setting(0.0, "the machine's peak at matrix products in FLOP/s; 0: measure it", continues=True)

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise SettingsError(f"there is no task {self.task!r}; choose one of {', '.join(TASKS)}")
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            if setting.choices and value not in setting.choices:
                raise SettingsError(f"{name} is {value!r}; choose one of {', '.join(setting.choices)}")
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) < high:
                raise SettingsError(f"{name} is {getattr(self, name)}, expected at least {low} and less than {high}")
        if self.batch_size % self.accumulation_steps:
            raise SettingsError(
                f"batch_size is {self.batch_size}, no multiple of accumulation_steps, {self.accumulation_steps}"
            )
        if self.learning_rate <= 0:
            raise SettingsError(f"learning_rate is {self.learning_rate}, expected a positive number")

    def to_json(self) -> dict[str, Any]:
        """Return the settings of the task by name, the task left out."""
        values = {name: getattr(self, name) for name in settings_of(self.task)}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


SETTINGS: dict[str, Setting] = {
    field.name: field.metadata["setting"] for field in dataclasses.fields(Settings) if "setting" in field.metadata
}
KINDS: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Settings)}

_MANY = 1 << 40
_RANGES = {
    "steps": (1, _MANY),
    "batch_size": (1, _MANY),
    "accumulation_steps": (1, _MANY),
    "seed": (0, 1 << 32),
    "warmup": (0, _MANY),
    "final_fraction": (0, 1.0000001),
    "beta2": (0, 1),
    "weight_decay": (0, _MANY),
    "clip_norm": (0, _MANY),
    "label_smoothing": (0, 1),
    "ema_decay": (0, 1),
    "dropout": (0, 1),
    "log_every": (1, _MANY),
    "eval_every": (1, _MANY),
    "eval_batches": (0, _MANY),
    "patience": (0, _MANY),
    "explosion": (1, float("inf")),
    "checkpoint_every": (1, _MANY),
    "max_to_keep": (1, _MANY),
    "peak": (0, float("inf")),
}


def settings_of(task: str) -> dict[str, Setting]:
    """Return the settings that a task has, by name."""
    return {name: setting for name, setting in SETTINGS.items() if task in setting.tasks}


def default_of(name: str, task: str) -> Any:
    """Return the default of a setting for a task."""
    return SETTINGS[name].defaults.get(task, Settings.__dataclass_fields__[name].default)


def settings_from(values: Mapping[str, Any], *, task: str) -> Settings:
    """Return settings with these values, and defaults for the rest.

    Args:
        values: by name; lists for settings of several values.
        task: one of `TASKS`.

    Raises:
        SettingsError: a name that the task does not have, a value of another kind, or one that cannot be.
    """
    if task not in TASKS:
        raise SettingsError(f"there is no task {task!r}; choose one of {', '.join(TASKS)}")
    known = settings_of(task)
    given = {}
    for name, value in values.items():
        if name not in known:
            raise SettingsError(f"{task} has no setting {name!r}; it has {', '.join(known)}")
        given[name] = _converted(name, value)
    defaults = {name: default_of(name, task) for name in known}
    return Settings(task=task, **(defaults | given))


def _converted(name: str, value: Any) -> Any:
    kind = KINDS[name]
    if kind == tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return tuple(value)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    expected = (
        "a list of strings"
        if kind == tuple[str, ...]
        else {int: "an integer", str: "a string", bool: "true or false"}.get(kind, "a number")
    )
    raise SettingsError(f"{name} is {value!r}, expected {expected}")


def differences(old: Settings, new: Settings) -> list[str]:
    """Return what keeps a run with the old settings from going on with the new ones, as "name: old, now new"."""
    if old.task != new.task:
        return [f"task: {old.task}, now {new.task}"]
    return [
        f"{name}: {getattr(old, name)}, now {getattr(new, name)}"
        for name, setting in settings_of(new.task).items()
        if not setting.continues and getattr(old, name) != getattr(new, name)
    ]
