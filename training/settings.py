"""The settings of a training run: every one with a default, a sentence of help, and a check.

`training.tasks` knows which of them a task has, and where its defaults differ.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

VARIANTS = (
    "PAPER", "VASWANI", "BERT", "ALBERT", "GPT2", "GPT3", "GOPHER", "BLOOM", "LLAMA", "MISTRAL", "QWEN2", "QWEN3",
    "OLMO2", "GEMMA", "GEMMA2", "GEMMA3", "NEOX", "GPT_NEO", "OPT", "ROBERTA", "BART", "T5", "MARIAN", "FSMT",
)  # fmt: skip
# A choice brings its own defaults; they hold where it differs from the task's own choice.
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {"learning_rate": 0.1, "weight_decay": 0.0},
    "adam": {"learning_rate": 4e-3, "weight_decay": 0.0},
    "adamw": {"learning_rate": 4e-3, "weight_decay": 0.1},
    "lion": {"learning_rate": 4e-4, "weight_decay": 1.0, "beta2": 0.99},
    "adafactor": {"learning_rate": 1e-2, "weight_decay": 0.0},
    "muon": {"learning_rate": 2e-2, "weight_decay": 0.1},
}
SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {"warmup": 0},
    "cosine": {"final_fraction": 0.02},
    "linear": {"final_fraction": 0.0},
    "wsd": {"final_fraction": 0.0},
    "vaswani": {"learning_rate": 1.0, "warmup": 4000},
}
FINE_TUNING: dict[str, Any] = {"optimizer": "adamw", "schedule": "cosine"}
"""Defaults of a training that starts from a trained model, which would not survive muon's rates."""
FINE_TUNING_DIVISOR = 40
"""Its learning rates are those that an optimizer and a schedule bring, divided by this."""
LOW_RANK_DIVISOR = 4
"""The same where only low-rank matrices are trained, which bear ten times the rate (and have no weight decay)."""
RATES = ("learning_rate", "embedding_learning_rate", "vector_learning_rate")
DECAYING = ("adamw", "lion", "muon")
"""The optimizers that have a weight decay."""
REMAT: dict[str, Any] = {
    "nothing": False,
    "all-but-products": "all but products",
    "all-but-attention": "all but attention",
    "all": True,
}


PAPER_NAMES = frozenset({"N_V", "L", "L_enc", "L_dec", "H", "d_e", "d_in", "d_mlp", "d_r", "l_max", "l_gen", "p_mask"})


def flag(name: str) -> str:
    """Return the flag of a setting or an option; the paper's names stay as the paper writes them.

    Example:
        >>> flag("batch_size"), flag("l_max")
        ('--batch-size', '--l_max')
    """
    name = {"start_from": "from"}.get(name, name)  # a word that Python keeps for itself
    return "--" + (name if name in PAPER_NAMES else name.replace("_", "-"))


class SettingsError(ValueError):
    """A setting is unknown, of the wrong kind, or impossible; the message is one sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting's description, for the command line."""

    help: str  # a sentence
    common: bool = True  # whether every task has it
    choices: tuple[str, ...] | None = None  # its values, if there are few
    # whether a run may be resumed with another value: it changes no number, or only its rounding
    continues: bool = False
    depends: tuple[str, ...] = ()  # the settings that its default depends on


def _setting(default: Any, sentence: str, **options: Any) -> Any:
    return dataclasses.field(default=default, metadata={"setting": Setting(help=sentence, **options)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run; `SETTINGS` describes each."""

    task: str
    # data
    data: tuple[str, ...] = _setting(
        ("docs",),
        "a named data set (training/data/corpora lists them), files, directories of .txt and .md, or "
        "hf:NAME:SPLIT:COLUMN to stream one of the hub; FILE=WEIGHT for each draws from them by weight",
    )
    validation_data: tuple[str, ...] = _setting(
        (), "files to validate on; without them, a part of the data is held out"
    )
    tokenizer: str = _setting(
        "bpe",
        "bytes, characters, words or bpe (built from the training data), or the path of a tokenizer",
    )
    N_V: int = _setting(2048, "size of the vocabulary that words and bpe aim at, with the three special tokens")
    l_max: int = _setting(128, "longest sequence, in tokens")
    rows: str = _setting(
        "packed",
        "how documents become sequences: cut into chunks, cut as one text into windows, or several packed in a row",
        common=False,
        choices=("chunks", "windows", "packed"),
    )
    masking: str = _setting(
        "paper", "how tokens are hidden: Algorithm 12's rule or BERT's", common=False, choices=("paper", "bert")
    )
    p_mask: float = _setting(0.15, "probability to hide a token", common=False)
    pairs: tuple[str, ...] = _setting(
        (), "pairs that the decoder learns besides: a named data set or files, as source, TAB and target", common=False
    )
    labeled: tuple[str, ...] = _setting(
        (), "labeled texts that the decoder learns besides: likewise, as text, TAB and label", common=False
    )
    token_noise: float = _setting(
        0.0, "probability to replace a token that the model reads in training by a random one", common=False
    )
    token_deletion: float = _setting(
        0.0, "probability to leave a token out of a source, or of a text to classify, in training", common=False
    )
    fold: str = _setting(
        "", "I/K: hold out the I-th of K equal parts of the training and validation data, from 1", common=False
    )
    # model
    variant: str = _setting(
        "PAPER",
        "the pseudocode, or the published model that differs from it",
        choices=VARIANTS,
    )
    L: int = _setting(4, "layers", common=False)
    L_enc: int = _setting(2, "layers of the encoder", common=False)
    L_dec: int = _setting(2, "layers of the decoder", common=False)
    shared_layers: int = _setting(
        0, "how many layers in a row have the same parameters (0: all of ALBERT's, and 1, which is none, of others)"
    )
    patch: int = _setting(4, "side of a patch of an image, in pixels", common=False)
    d_r: int = _setting(16, "channels of the residual block that embeds a patch", common=False)
    n_groups: int = _setting(4, "groups of channels that its norms are taken over", common=False)
    n_places: int = _setting(16, "rows of patches, and columns of patches, that an image may have", common=False)
    H: int = _setting(4, "heads")
    H_kv: int = _setting(0, "heads of keys and values, each of which several heads share (0: as many as heads)")
    d_e: int = _setting(128, "dimensions of the residual stream")
    d_in: int = _setting(0, "rows of ALBERT's embeddings, which are projected to d_e (0: d_e)", common=False)
    d_mlp: int = _setting(512, "hidden units of an MLP")
    vocabulary_multiple: int = _setting(
        1, "pad the embeddings to a multiple of this many tokens, so that the mesh divides them; padding is not a token"
    )
    tied: bool = _setting(True, "whether the unembedding is the transposed embedding")
    init: str = _setting("gpt2", "how parameters start", choices=("glorot", "gpt2"))
    start_from: str = _setting(
        "", "directory of a run or a checkpoint to continue from, with its sizes, parameters and tokenizer"
    )
    lora_rank: int = _setting(
        0, "train only low-rank matrices B A of this rank beside the frozen ones of --from; 0: train all", common=False
    )
    lora_alpha: float = _setting(
        0.0,
        "the matrices are W + s·B A, where s is this divided by the rank",
        common=False,
        depends=("lora_rank",),
    )
    lora_matrices: tuple[str, ...] = _setting(
        (), "the layers' matrices that get such ones, as W_q W_v; without it, all of them", common=False
    )
    dropout: float = _setting(0.0, "probability to drop an attention weight or an activation of an MLP")
    # optimization
    steps: int = _setting(600, "updates of the parameters")
    batch_size: int = _setting(16, "sequences in an update")
    accumulation_steps: int = _setting(
        1,
        "parts that a batch is computed in, one after another, to save memory; more where it is short",
        continues=True,
    )
    seed: int = _setting(0, "decides parameters, order of the data, masks and dropout")
    optimizer: str = _setting("muon", "the update rule", choices=tuple(OPTIMIZERS), depends=("start_from",))
    learning_rate: float = _setting(
        2e-2,
        "its largest learning rate, of muon that of the matrices; with the schedule vaswani, a factor",
        depends=("optimizer", "schedule", "start_from", "lora_rank"),
    )
    embedding_learning_rate: float = _setting(
        1e-2, "muon's largest learning rate of W_e, W_p, W_u and W_c, by Adam", depends=("start_from",)
    )
    vector_learning_rate: float = _setting(
        4e-3, "muon's largest learning rate of biases and norms, by Adam", depends=("start_from",)
    )
    schedule: str = _setting(
        "linear", "how the learning rate changes", choices=tuple(SCHEDULES), depends=("start_from",)
    )
    warmup: int = _setting(
        0, "steps over which the learning rate rises; a tenth of all unless given", depends=("steps", "schedule")
    )
    final_fraction: float = _setting(
        0.0, "share of the learning rate that cosine, linear and wsd end with", depends=("schedule",)
    )
    momentum: float = _setting(0.95, "decay rate of muon's momentum, which is Nesterov's")
    beta1: float = _setting(0.9, "decay rate of Adam's first moment, and lion's")
    beta2: float = _setting(0.98, "decay rate of Adam's second moment, and lion's momentum", depends=("optimizer",))
    eps: float = _setting(1e-9, "what Adam adds to the root of its second moment")
    weight_decay: float = _setting(
        0.1, "of adamw, lion and muon; biases, norms and embeddings are spared", depends=("optimizer", "lora_rank")
    )
    clip_norm: float = _setting(1.0, "largest global norm of a gradient; 0 leaves gradients as they are")
    label_smoothing: float = _setting(0.0, "share of the target that is spread over all tokens")
    ema_decay: float = _setting(
        0.0,
        "decay of an exponential moving average of the parameters, which is then what is evaluated and kept; 0: none",
    )
    dtype: str = _setting(
        "float32",
        "of the computation; parameters and optimizer stay float32; in float16 the loss is scaled",
        choices=("float32", "bfloat16", "float16"),
    )
    remat: str = _setting(
        "nothing",
        "what the backward pass recomputes of each layer, to save memory; with all, attention's kernel runs twice",
        choices=tuple(REMAT),
    )
    unroll: bool = _setting(
        False,
        "compile each layer for itself: faster steps on an accelerator, and several times the time to compile them",
        continues=True,
    )
    # running
    mesh: str = _setting(
        "",
        "how devices divide the work, such as data=4,model=2: replica and data divide the batch, data the parameters, "
        "model heads, hidden units and vocabulary, and context the tokens of a sequence; without it, one device",
        continues=True,
    )
    log_every: int = _setting(1, "steps between two lines of metrics.jsonl", continues=True)
    eval_every: int = _setting(100, "steps between two evaluations on held-out data", continues=True)
    eval_batches: int = _setting(
        32,
        "batches of an evaluation on the way, 0 for all; the last one is always on all held-out data",
        continues=True,
    )
    patience: int = _setting(
        0, "evaluations without a better loss after which to stop, keeping the best parameters; 0: never"
    )
    explosion: float = _setting(10.0, "stop where the loss exceeds this multiple of a uniform guess's", continues=True)
    checkpoint_every: int = _setting(200, "steps between two checkpoints", continues=True)
    max_to_keep: int = _setting(2, "checkpoints to keep", continues=True)
    tensorboard: bool = _setting(True, "whether to write TensorBoard's event files, too", continues=True)
    wandb: bool = _setting(
        False, "whether to write to Weights & Biases, too (WANDB_MODE=offline: to DIR/wandb)", continues=True
    )
    profile: bool = _setting(False, "whether to write a trace of some steps to DIR/profile", continues=True)
    peak: float = _setting(0.0, "the machine's peak at matrix products in FLOP/s; 0: measure it", continues=True)

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            if setting.choices and value not in setting.choices:
                raise SettingsError(f"{flag(name)}: expected one of {', '.join(setting.choices)}, got {value!r}")
        for name, (low, high) in _RANGES.items():
            if not low <= getattr(self, name) < high:
                value = getattr(self, name)
                raise SettingsError(f"{flag(name)}: expected at least {low} and less than {high}, got {value}")
        if self.batch_size % self.accumulation_steps:
            raise SettingsError(
                f"--batch-size: expected a multiple of --accumulation-steps, {self.accumulation_steps}, got "
                f"{self.batch_size}"
            )
        for name in (*RATES, "eps"):
            if not 0 < getattr(self, name) < math.inf:
                raise SettingsError(f"{flag(name)}: expected a positive number, got {getattr(self, name)}")
        if self.schedule != "vaswani" and self.warmup > self.steps:
            raise SettingsError(f"--warmup: expected at most --steps, {self.steps}, got {self.warmup}")
        self._check_low_rank()
        if self.weight_decay and self.optimizer not in DECAYING:
            choices = ", ".join(DECAYING)
            raise SettingsError(
                f"--weight-decay: expected 0 for {self.optimizer}, got {self.weight_decay}; or choose one of {choices}"
            )

    def _check_low_rank(self) -> None:
        if self.lora_rank and not self.start_from:
            raise SettingsError("--lora-rank: expected --from RUN, whose parameters it is beside, got none; name a run")
        if self.lora_rank and not 0 < self.lora_alpha < math.inf:
            raise SettingsError(f"--lora-alpha: expected a positive number, got {self.lora_alpha}")
        if not self.lora_rank and (self.lora_alpha or self.lora_matrices):
            name = "lora_alpha" if self.lora_alpha else "lora_matrices"
            raise SettingsError(f"{flag(name)}: expected --lora-rank beside it, got none; give the rank")


GROUPS = {"data": "data", "variant": "model", "steps": "optimization", "mesh": "running"}
"""The groups of settings, by the first of each."""
SETTINGS: dict[str, Setting] = {
    field.name: field.metadata["setting"] for field in dataclasses.fields(Settings) if "setting" in field.metadata
}
KINDS: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Settings)}

_MANY = 1 << 40
_RANGES = {
    "shared_layers": (0, _MANY),
    "d_in": (0, _MANY),
    "steps": (1, _MANY),
    "batch_size": (1, _MANY),
    "accumulation_steps": (1, _MANY),
    "vocabulary_multiple": (1, _MANY),
    "seed": (0, 1 << 32),
    "warmup": (0, _MANY),
    "final_fraction": (0, 1.0000001),
    "momentum": (0, 1),
    "beta1": (0, 1),
    "beta2": (0, 1),
    "weight_decay": (0, _MANY),
    "clip_norm": (0, _MANY),
    "label_smoothing": (0, 1),
    "ema_decay": (0, 1),
    "lora_rank": (0, _MANY),
    "dropout": (0, 1),
    "token_noise": (0, 1),
    "token_deletion": (0, 1),
    "log_every": (1, _MANY),
    "eval_every": (1, _MANY),
    "eval_batches": (0, _MANY),
    "patience": (0, _MANY),
    "explosion": (1, float("inf")),
    "checkpoint_every": (1, _MANY),
    "max_to_keep": (1, _MANY),
    "peak": (0, float("inf")),
}


def converted(name: str, value: Any) -> Any:
    """Return the value of a setting from JSON, or raise SettingsError if it is of another kind."""
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
    raise SettingsError(f"{flag(name)}: expected {expected}, got {value!r}")


def dependent_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of a task's settings that depend on given ones, where these are not the default."""
    goes_on = bool(given.get("start_from"))
    found: dict[str, Any] = dict(FINE_TUNING) if goes_on else {}
    chosen = {**defaults, **found, **given}
    for choice, tables in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        if chosen[choice] != defaults[choice] or goes_on:
            found |= tables.get(chosen[choice], {})
    if goes_on:
        divisor = LOW_RANK_DIVISOR if given.get("lora_rank") else FINE_TUNING_DIVISOR
        found |= {name: found.get(name, defaults[name]) / divisor for name in RATES}
    if given.get("lora_rank"):
        found |= {"weight_decay": 0.0, "lora_alpha": 2.0 * given["lora_rank"]}
    if "warmup" not in found and chosen["schedule"] != "constant":
        found["warmup"] = -(-chosen["steps"] // 10)
    return found


def differences(old: Settings, new: Settings, *, done: int = 0) -> list[str]:
    """Return what keeps a run that has made `done` updates from being resumed with new settings, as "name: old, now
    new"; the number of steps may change where it decides nothing about them.
    """
    if old.task != new.task:
        return [f"task: {old.task}, now {new.task}"]
    return [
        f"{name}: {getattr(old, name)}, now {getattr(new, name)}"
        for name in SETTINGS
        if getattr(old, name) != getattr(new, name) and not _may_change(name, old, new, done)
    ]


def _may_change(name: str, old: Settings, new: Settings, done: int) -> bool:
    if name == "steps":  # the rates of these schedules do not depend on it, at least not so far
        falls = min(steps - decay_steps(steps) for steps in (old.steps, new.steps))
        return done <= new.steps and (
            old.schedule in ("constant", "vaswani") or (old.schedule == "wsd" and done <= falls)
        )
    if name in ("eval_every", "eval_batches") and old.patience:  # they decide when the training stops
        return False
    return SETTINGS[name].continues


def decay_steps(steps: int) -> int:
    """Return over how many of the last steps the schedule wsd goes down: a fifth of them."""
    return -(-steps // 5)
