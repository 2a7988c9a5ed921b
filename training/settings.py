"""The settings of a training run, each with a default, a help text and a check.

`training.tasks` decides which of them a task has, and which of its defaults differ.
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from algorithms import VARIANTS

# An optimizer or schedule sets other defaults if it is not the task's own.
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
"""Defaults of a training that starts from a trained model, which muon's learning rates would destroy."""
FINE_TUNING_DIVISOR = 40
"""Divisor of the default learning rates in fine-tuning."""
LOW_RANK_DIVISOR = 4
"""The divisor for low-rank adapters, which tolerate ten times higher learning rates (and need no weight decay)."""
RATES = ("learning_rate", "embedding_learning_rate", "vector_learning_rate")
DECAYING = ("adamw", "lion", "muon")
"""Optimizers with weight decay."""
REMAT: dict[str, Any] = {
    "nothing": False,
    "all-but-products": "all but products",
    "all-but-attention": "all but attention",
    "all": True,
}
PAPER_NAMES = frozenset(
    {"N_V", "L", "L_enc", "L_dec", "H", "d_e", "d_in", "d_mlp", "d_r", "l_max", "l_gen", "p_mask", "H_kv"}
)
EXPECTED = {
    int: "an integer",
    float: "a number",
    str: "a string",
    bool: "true or false",
    tuple[str, ...]: "a list of strings",
}
"""The types of settings, in words."""

MANY = 1 << 40
_COUNT, _POSITIVE, _SHARE = (0, MANY), (1, MANY), (0, 1)


def flag(name: str) -> str:
    """Return the flag of a setting or an option; the paper's names keep the paper's spelling.

    Example:
        >>> flag("batch_size"), flag("l_max")
        ('--batch-size', '--l_max')
    """
    name = {"start_from": "from"}.get(name, name)  # a keyword of Python
    return "--" + (name if name in PAPER_NAMES else name.replace("_", "-"))


class SettingsError(ValueError):
    """A setting is unknown or invalid; the message is one sentence."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Setting:
    """A setting's description."""

    help: str  # help text of its flag
    common: bool = True  # whether every task has it
    choices: tuple[str, ...] | None = None  # its values, if there are few
    names_others: bool = False  # whether other values with a colon name, or describe, what a package defines
    within: tuple[float, float] | None = None  # its least value, and the first that is too large
    continues: bool = False  # whether a run may be resumed with another value: it changes nothing, or only rounding
    depends: tuple[str, ...] = ()  # settings that its default depends on


def _setting(default: Any, sentence: str, **options: Any) -> Any:
    return dataclasses.field(default=default, metadata={"setting": Setting(help=sentence, **options)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of a run; `SETTINGS` describes each."""

    task: str
    # data
    data: tuple[str, ...] = _setting(
        ("docs",),
        "named data sets (listed in training/data/corpora), files, directories of .txt and .md files, or "
        "hf:NAME@REVISION:SPLIT:COLUMN to stream from the Hugging Face hub; FILE=WEIGHT samples them by weight",
    )
    validation_data: tuple[str, ...] = _setting((), "files to validate on; if none, part of the data is held out")
    tokenizer: str = _setting(
        "bpe", "bytes, characters, words or bpe (built from the training data), or the path of a tokenizer"
    )
    N_V: int = _setting(2048, "target vocabulary size of words and bpe, including the three special tokens")
    l_max: int = _setting(128, "maximum length of a sequence, in tokens")
    rows: str = _setting(
        "packed",
        "how documents become sequences: cut into chunks, joined and cut into windows, or packed several to a row",
        common=False,
        choices=("chunks", "windows", "packed"),
    )
    messages_are_markup: bool = _setting(
        False, "whether names of control tokens, such as <|im_end|>, in messages become these tokens", common=False
    )
    masking: str = _setting(
        "paper",
        "how tokens are masked: by Algorithm 12's rule, BERT's, or with a probability drawn for each sequence",
        common=False,
        choices=("paper", "bert", "diffusion"),
    )
    p_mask: float = _setting(0.15, "probability of masking a token", common=False)
    pairs: tuple[str, ...] = _setting(
        (), "pairs that the decoder also learns: a named data set or files of source, TAB and target", common=False
    )
    labeled: tuple[str, ...] = _setting(
        (), "labeled texts that the decoder also learns: a named data set or files of text, TAB and label", common=False
    )
    token_noise: float = _setting(
        0.0, "probability of replacing an input token by a random one in training", common=False, within=_SHARE
    )
    token_deletion: float = _setting(
        0.0, "probability of deleting an input token (of a source or a text) in training", common=False, within=_SHARE
    )
    # model
    variant: str = _setting(
        "PAPER",
        "the pseudocode, or a published model that differs from it; or a custom one: "
        "PACKAGE.MODULE:NAME, or a record's JSON",
        choices=tuple(VARIANTS),
        names_others=True,
    )
    L: int = _setting(4, "layers", common=False)
    L_enc: int = _setting(2, "layers of the encoder", common=False)
    L_dec: int = _setting(2, "layers of the decoder", common=False)
    shared_layers: int = _setting(
        0, "number of consecutive layers that share parameters; 0: all for ALBERT, else 1 (no sharing)", within=_COUNT
    )
    patch: int = _setting(4, "side of an image patch, in pixels", common=False)
    d_r: int = _setting(16, "channels of the residual block that embeds a patch", common=False)
    n_groups: int = _setting(4, "channel groups of its group norms", common=False)
    n_places: int = _setting(16, "maximum rows, and columns, of patches in an image", common=False)
    H: int = _setting(4, "heads")
    H_kv: int = _setting(0, "heads of keys and values, each shared by several query heads; 0: as many as heads")
    d_e: int = _setting(128, "dimension of the residual stream")
    d_in: int = _setting(
        0, "dimension of ALBERT's embeddings, which are projected to d_e; 0: d_e", common=False, within=_COUNT
    )
    d_mlp: int = _setting(512, "hidden units of an MLP")
    mtp_weight: float = _setting(
        0.0,
        "weight of the loss of a head for the token after the next (multi-token prediction); 0: that of --variant, if "
        "it has such a head",
        common=False,
        within=(0, math.inf),
    )
    vocabulary_multiple: int = _setting(
        1, "pad the vocabulary (not with tokens) to a multiple of this, which the mesh divides", within=_POSITIVE
    )
    tied: bool = _setting(True, "whether the unembedding is the transposed embedding")
    init: str = _setting("gpt2", "initialization of the parameters", choices=("glorot", "gpt2"))
    start_from: str = _setting(
        "",
        "model to start from, with its sizes and tokenizer: a run, a checkpoint, a GGUF file or hf:OWNER/NAME@REVISION",
    )
    lora_rank: int = _setting(
        0, "train only adapters B A of this rank, for the model of --from; 0: train all", common=False, within=_COUNT
    )
    lora_alpha: float = _setting(
        0.0, "s times the rank, where adapted matrices are W + s·B A", common=False, depends=("lora_rank",)
    )
    lora_matrices: tuple[str, ...] = _setting(
        (), "matrices of the layers to adapt, such as W_q W_v; if none, all of them", common=False
    )
    dropout: float = _setting(
        0.0, "probability of dropping an attention weight or an activation of an MLP", within=_SHARE
    )
    # optimization
    steps: int = _setting(600, "updates of the parameters", within=_POSITIVE)
    batch_size: int = _setting(16, "sequences per update", within=_POSITIVE)
    accumulation_steps: int = _setting(
        1, "sequential parts of a batch, to save memory; raised if memory is short", continues=True, within=_POSITIVE
    )
    seed: int = _setting(
        0, "random seed of the parameters, the order of the data, the masks and dropout", within=(0, 1 << 32)
    )
    optimizer: str = _setting("muon", "update rule", choices=tuple(OPTIMIZERS), depends=("start_from",))
    learning_rate: float = _setting(
        2e-2,
        "peak learning rate; muon's is that of the matrices, and the schedule vaswani multiplies by it",
        depends=("optimizer", "schedule", "start_from", "lora_rank"),
    )
    embedding_learning_rate: float = _setting(
        1e-2, "muon's peak learning rate of embeddings and unembeddings, by Adam", depends=("start_from",)
    )
    vector_learning_rate: float = _setting(
        4e-3, "muon's peak learning rate of biases, norms and other vectors, by Adam", depends=("start_from",)
    )
    schedule: str = _setting("linear", "learning-rate schedule", choices=tuple(SCHEDULES), depends=("start_from",))
    warmup: int = _setting(
        0, "warmup steps; unless given, a tenth of all steps", depends=("steps", "schedule"), within=_COUNT
    )
    final_fraction: float = _setting(
        0.0, "final fraction of the peak rate for cosine, linear and wsd", depends=("schedule",), within=(0, 1.0000001)
    )
    momentum: float = _setting(0.95, "decay rate of muon's Nesterov momentum", within=_SHARE)
    beta1: float = _setting(0.9, "decay rate of Adam's and lion's first moment", within=_SHARE)
    beta2: float = _setting(
        0.98, "decay rate of Adam's second moment, and of lion's momentum", depends=("optimizer",), within=_SHARE
    )
    eps: float = _setting(1e-9, "Adam's ε, added to the root of the second moment")
    weight_decay: float = _setting(
        0.1, "weight decay of matrices, for adamw, lion and muon", depends=("optimizer", "lora_rank"), within=_COUNT
    )
    clip_norm: float = _setting(1.0, "maximum global norm of a gradient; 0: no clipping", within=_COUNT)
    label_smoothing: float = _setting(0.0, "share of the target distribution that is uniform", within=_SHARE)
    ema_decay: float = _setting(
        0.0, "decay of an exponential moving average of the parameters to evaluate and save; 0: none", within=_SHARE
    )
    dtype: str = _setting(
        "auto",
        "type of the computation; parameters and optimizer state stay float32; auto is bfloat16 on TPUs and on GPUs "
        "that have it, and float32 on CPUs; float16 scales the loss",
        choices=("auto", "float32", "bfloat16", "float16"),
    )
    remat: str = _setting(
        "nothing",
        "what the backward pass recomputes in each layer, to save memory; all also reruns attention's kernel",
        choices=tuple(REMAT),
    )
    unroll: bool = _setting(
        False,
        "compile each layer separately: faster steps on accelerators, much slower compilation; on GPUs the default "
        "from 4,000 steps on",
        continues=True,
    )
    # running
    mesh: str = _setting(
        "",
        "how to divide the work among devices, such as data=4,model=2: replica and data divide the batch, data also "
        "the parameters, model the heads, hidden units and vocabulary, context the tokens; without it, one device",
        continues=True,
    )
    log_every: int = _setting(1, "steps between lines of metrics.jsonl", continues=True, within=_POSITIVE)
    eval_every: int = _setting(100, "steps between evaluations on held-out data", continues=True, within=_POSITIVE)
    eval_batches: int = _setting(
        32,
        "batches per evaluation, a fixed random sample, 0 for all; the results at the end are of all held-out data",
        continues=True,
        within=_COUNT,
    )
    patience: int = _setting(
        0, "stop after this many evaluations without a better loss, keep the best parameters; 0: never", within=_COUNT
    )
    explosion: float = _setting(
        10.0,
        "stop if the losses of ten steps in a row exceed this multiple of a uniform guess's",
        continues=True,
        within=(1, math.inf),
    )
    checkpoint_every: int = _setting(200, "steps between checkpoints", continues=True, within=_POSITIVE)
    max_to_keep: int = _setting(2, "number of checkpoints to keep", continues=True, within=_POSITIVE)
    tensorboard: bool = _setting(True, "whether to write TensorBoard event files", continues=True)
    wandb: bool = _setting(
        False, "whether to log to Weights & Biases (WANDB_MODE=offline: to DIR/wandb)", continues=True
    )
    profile: bool = _setting(False, "whether to write a profiler trace of some steps to DIR/profile", continues=True)
    peak: float = _setting(
        0.0, "the machine's peak FLOP/s of matrix products; 0: measure it", continues=True, within=(0, math.inf)
    )

    def __post_init__(self) -> None:
        for name, setting in SETTINGS.items():
            value = getattr(self, name)
            if setting.choices and value not in setting.choices and not (setting.names_others and ":" in value):
                others = ", or PACKAGE.MODULE:NAME" if setting.names_others else ""
                known = ", ".join(setting.choices)
                raise SettingsError(f"{flag(name)}: expected one of {known}{others}, got {value!r}")
            if setting.within and not setting.within[0] <= value < setting.within[1]:
                low, high = setting.within
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
        if self.lora_rank and self.mtp_weight:
            raise SettingsError("--lora-rank and --mtp-weight exclude each other: an adapter has no head")
        if self.weight_decay and self.optimizer not in DECAYING:
            choices = ", ".join(DECAYING)
            raise SettingsError(
                f"--weight-decay: expected 0 for {self.optimizer}, got {self.weight_decay}; or choose one of {choices}"
            )

    def _check_low_rank(self) -> None:
        if self.lora_rank and not self.start_from:
            raise SettingsError("--lora-rank: expected --from RUN, the model to adapt, got none; name a run")
        if self.lora_rank and not 0 < self.lora_alpha < math.inf:
            raise SettingsError(f"--lora-alpha: expected a positive number, got {self.lora_alpha}")
        if not self.lora_rank and (self.lora_alpha or self.lora_matrices):
            name = "lora_alpha" if self.lora_alpha else "lora_matrices"
            raise SettingsError(f"{flag(name)}: expected --lora-rank with it, got none; give the rank")


GROUPS = {"data": "data", "variant": "model", "steps": "optimization", "mesh": "running"}
"""First setting of a group → the group's name."""
SETTINGS: dict[str, Setting] = {
    field.name: field.metadata["setting"] for field in dataclasses.fields(Settings) if "setting" in field.metadata
}
KINDS: dict[str, Any] = {field.name: field.type for field in dataclasses.fields(Settings)}


def converted(name: str, value: Any) -> Any:
    """Return the value of a setting from JSON, or raise SettingsError if it has the wrong type."""
    kind = KINDS[name]
    if SETTINGS[name].names_others and isinstance(value, dict):  # a record
        return json.dumps(value, sort_keys=True)
    if kind == tuple[str, ...]:
        if isinstance(value, list | tuple) and all(isinstance(v, str) for v in value):
            return tuple(value)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    raise SettingsError(f"{flag(name)}: expected {EXPECTED[kind]}, got {value!r}")


def dependent_defaults(given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the task's defaults that change with the given settings."""
    fine_tunes = bool(given.get("start_from"))
    found: dict[str, Any] = dict(FINE_TUNING) if fine_tunes else {}
    chosen = {**defaults, **found, **given}
    for choice, tables in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        if chosen[choice] != defaults[choice] or fine_tunes:
            found |= tables.get(chosen[choice], {})
    if fine_tunes:
        divisor = LOW_RANK_DIVISOR if given.get("lora_rank") else FINE_TUNING_DIVISOR
        found |= {name: found.get(name, defaults[name]) / divisor for name in RATES}
    if given.get("lora_rank"):
        found |= {"weight_decay": 0.0, "lora_alpha": 2.0 * given["lora_rank"]}
    if "warmup" not in found and chosen["schedule"] != "constant":
        found["warmup"] = -(-chosen["steps"] // 10)
    return found


def decay_steps(steps: int) -> int:
    """Return the number of steps over which the schedule wsd decays: the last fifth."""
    return -(-steps // 5)
