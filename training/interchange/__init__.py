"""Checkpoints of other libraries: their weights run through Algorithms 8 to 10 unchanged, and ours open there.

    theta, config, tokenizer = load_pretrained("gpt2-directory")
    P = d_transformer(x, theta, variant=config.variant)
    save_pretrained("elsewhere", theta, config, tokenizer)      # opens in transformers
    convert("gpt2-directory", "runs/gpt2")                      # a directory that every script takes as it takes a run
    convert("runs/taught", "adapter")                           # a run's adapter of low rank, in PEFT's files

Every tensor is one of our arrays, or slices of them, so both directions are exact to the last bit. A directory is
written whole or not at all. docs/weights.md lists the supported kinds, and how each was compared.
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import DTransformerParams, EDTransformerParams, ETransformerParams, GatoParams
from algorithms.model.variants import name_of
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import NumberTokenizer, Tokenizer
from training.disk import reason, require_file
from training.interchange import consistency, containers, gguf_tokenizer, mapping, peft, positions, tokenizer_files
from training.interchange.architectures import ARCHITECTURES, WRITTEN_AS
from training.interchange.description import Architecture, Fields, Model, read_json
from training.interchange.errors import InterchangeError
from training.interchange.gguf_file import SUFFIX
from training.interchange.gguf_models import GGUFTensors, open_gguf
from training.interchange.license import license_of
from training.interchange.unsupported import NEEDS
from training.runs.directory import (
    FORMAT,
    FROZEN,
    Description,
    Run,
    RunDirectory,
    frozen_fingerprint,
    load_run,
    read_adapter,
)
from training.runs.named_arrays import flatten, unflatten
from training.tasks import TASKS, settings_from
from training.tasks.classify import ClassifierParams
from training.tasks.low_rank import adapter_shapes, scale_of
from training.tasks.models import model_shapes

__all__ = ["InterchangeError", "convert", "load_model", "load_pretrained", "save_pretrained"]

SUFFIXES = (".json", ".txt", ".spm", ".safetensors", ".bin", ".pt", ".pth")
"""Of the files of a checkpoint."""
TASK_OF = {
    DTransformerParams: "d",
    ETransformerParams: "e",
    EDTransformerParams: "ed",
    ClassifierParams: "classify",
    GatoParams: "gato",
}
"""The task that trains parameters of a class."""


def load_pretrained(path: str | Path) -> tuple[Any, Any, Tokenizer | None]:
    """Read a checkpoint of another library, or a directory of ours.

    Args:
        path: a directory with config.json and the weights: model.safetensors, several files and their index, or a file
            of PyTorch's, which is read without running any code in it; or a file of GGUF, which has all of it.

    Returns:
        the parameters, the configuration, which has the variant, and the tokenizer, if there is one that can be read.

    Raises:
        InterchangeError: the model needs something unsupported, or the files are damaged or contradict each other.
    """
    model = load_model(path)
    tokenizer = None if isinstance(model.tokenizer, NumberTokenizer) else model.tokenizer
    return model.theta, model.config, tokenizer


def load_model(path: str | Path, *, dtype: Any = None) -> Run:
    """Read a checkpoint as `load_pretrained`, or a run as `training.runs.directory.load_run`; they become `dtype`.
    Raises InterchangeError as `load_pretrained`.
    """
    path = Path(path)
    if is_ours(path):
        return load_run(path, dtype=dtype)
    model, leaves, tokenizer, _ = _read(path, dtype)
    theta = unflatten(_template(model), {name: jnp.asarray(leaves.pop(name)) for name in list(leaves)})
    return Run(theta, model.config, tokenizer, model.task, model.labels)


def save_pretrained(
    path: str | Path,
    theta: Any,
    config: Any,
    tokenizer: Tokenizer | None = None,
    *,
    to: str | None = None,
    labels: tuple[str, ...] = (),
) -> None:
    """Write parameters so that transformers opens them, with the same logits.

    Args:
        path: the directory, which must not exist, or be empty.
        theta: the parameters.
        config: sizes and variant.
        tokenizer: written beside them.
        to: the kind of model, such as "gpt2"; None: the likeliest that can be what this one is.
        labels: the classes of a classifier, by number.

    Raises:
        InterchangeError: no kind can express this model; lists what it would need.
    """
    task = TASK_OF.get(type(theta))
    if task is None or not isinstance(config, TASKS[task].config):
        raise InterchangeError(
            f"expected a model's parameters and their configuration, got {type(theta).__name__} and "
            f"{type(config).__name__}"
        )
    if task == "classify" and not labels:
        labels = tuple(f"LABEL_{i}" for i in range(theta.W_c.shape[0]))
    _save(Path(path), Model(task, config, labels), flatten(theta), tokenizer, to)


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str | None = None,
    dtype: Any = None,
    merge: bool = False,
    adapted: str | Path | None = None,
    progress: Callable[[int, int], None] = lambda n, total: None,
) -> str:
    """Convert a checkpoint to a directory that the scripts take as they take a run, or a run to a checkpoint.

    Args:
        source: a directory, of a checkpoint, of a run, or of an adapter of PEFT's; or a file of GGUF.
        target: the directory to write, which must not exist, or be empty.
        to: the kind of checkpoint to write, such as "gpt2"; None: for a run, the likeliest.
        dtype: what the parameters become; None: what they are.
        merge: whether a run with an adapter is written as a checkpoint, and not as an adapter of PEFT's.
        adapted: the run whose parameters an adapter of PEFT's is for.
        progress: called with how many tensors of a checkpoint were read since, and how many there are.

    Returns:
        a sentence on what was done; of a checkpoint also its size and its license.

    Raises:
        InterchangeError: as `load_pretrained` and `save_pretrained`; nothing is written then.
    """
    source, target = Path(source), Path(target)
    reads = adapted is not None or (source.is_dir() and peft.is_adapter(source))
    adapts = not reads and is_ours(source) and RunDirectory(source).description().settings.lora_rank
    if merge and not adapts:
        raise InterchangeError(f"--merge: expected a run with an adapter (--lora-rank), got {source}; leave it out")
    if dtype is not None and (reads or (adapts and not merge)):
        raise InterchangeError(f"--dtype: expected none for an adapter, which is in float32, got {dtype}; leave it out")
    if reads:
        return _read_adapter(source, target, adapted)
    if adapts and not merge:
        return _save_adapter(source, target, to)
    if is_ours(source):
        with jax.enable_x64(True):  # float64 stays float64
            run = load_run(source, dtype=dtype)
        save_pretrained(target, run.theta, run.config, run.tokenizer, to=to, labels=run.labels)
        return f"{source} is in {target} now, which transformers opens."
    model, leaves, tokenizer, said = _read(source, dtype, progress)
    about = f"\n{_size(leaves)}; {said.license}"
    if to:
        _save(target, model, leaves, tokenizer, to)
        return f"{source} is in {target} now, as {to}.{about}"
    variant = name_of(model.config.variant) or "PAPER"
    settings = settings_from(_sizes(model, variant), task=model.task)
    description = Description(settings, model.config, model.labels, {"tokenizer": tokenizer.fingerprint()})

    def write(directory: Path) -> None:
        run = RunDirectory(directory)
        run.begin(description, tokenizer)
        run.save_leaves(leaves)

    unending = tokenizer.end is None and _unending(said.fields, model)
    _write_whole(target, write)
    return f"{source} is in {target} now, which the scripts take as they take a run.{about}{unending or ''}"


def _size(leaves: dict[str, np.ndarray]) -> str:
    """How large a model is."""
    dtype, n_bytes = jnp.result_type(*leaves.values()).name, sum(a.nbytes for a in leaves.values())
    return f"{sum(a.size for a in leaves.values()):,} parameters, {n_bytes / 1e6:,.1f} MB in {dtype}"


def _save_adapter(source: Path, target: Path, to: str | None) -> str:
    """Write the adapter of a run as PEFT's files."""
    files = RunDirectory(source)
    description = files.description()
    base = description.settings.start_from
    shapes = model_shapes("d", description.config)
    model = Model("d", description.config)
    kind, state = _described(model, to)
    adapter = read_adapter(files, description, shapes)
    entries, scale = ARCHITECTURES[kind].entries(model, state), scale_of(description.settings)
    _write_whole(target, lambda directory: peft.write(directory, entries, adapter, shapes, scale))
    return (
        f"The adapter of {source} is in {target} now, which peft opens beside the model that convert.py {base} writes; "
        "convert.py --merge writes both as one."
    )


def _read_adapter(source: Path, target: Path, adapted: str | Path | None) -> str:
    """Write an adapter in PEFT's files as a run that adapts another one."""
    if adapted is None:
        raise InterchangeError(f"{source} is an adapter: expected --from RUN, the model that it adapts, got none")
    if not (source.is_dir() and peft.is_adapter(source)):
        raise InterchangeError(f"--from: expected an adapter of PEFT's, with {peft.CONFIG}, got {source}; leave it out")
    if not is_ours(Path(adapted)):
        raise InterchangeError(f"--from: expected the directory of a run, got {adapted}; convert what is there first")
    base = load_run(adapted)
    if base.task != "d":
        raise InterchangeError(f"--from: expected a decoder, got {adapted} of the task {base.task}; name the model")
    model = Model(base.task, base.config)
    kind, state = _described(model, None)
    found = peft.read(source, ARCHITECTURES[kind].entries(model, state), base.theta)
    values = _sizes(model, name_of(base.config.variant) or "PAPER") | {
        "start_from": str(Path(adapted).absolute()),
        "lora_rank": found.rank,
        "lora_alpha": found.alpha,
        "lora_matrices": found.matrices,
    }
    settings = settings_from(values, task="d")
    adapter_shapes(base.theta, settings)
    fingerprints = {"tokenizer": base.tokenizer.fingerprint(), FROZEN: frozen_fingerprint(base.theta)}

    def write(directory: Path) -> None:
        run = RunDirectory(directory)
        run.begin(Description(settings, base.config, (), fingerprints), base.tokenizer)
        run.save_leaves(found.leaves, run.adapter)

    _write_whole(target, write)
    return f"{source} is in {target} now, beside {adapted}, and the scripts take it as they take a run."


def _unending(fields: Fields, model: Model) -> str:
    """Say what a model without an eos token cannot do, or raise InterchangeError if it can do nothing at all."""
    token = fields.get("eos_token_id")
    named = f"{fields.path}: eos_token_id: expected a token below N_V = {model.config.N_V}, got {token!r}"
    if model.task == "ed":
        raise InterchangeError(f"{named}; nothing would end a translation: name the token that does")
    return f"\nnote: {named}; so generation continues to the full length, and the model cannot be trained further."


def _sizes(model: Model, variant: str) -> dict[str, Any]:
    """The settings that describe the configuration."""
    known = TASKS[model.task].all_settings()
    sizes = {name: getattr(model.config, name) for name in known if hasattr(model.config, name)}
    return {**sizes, "variant": variant}


def is_ours(path: Path) -> bool:
    """Return whether a path is of a run's directory, or of what was converted to one. Raises InterchangeError if there
    is nothing, or a file of another kind.
    """
    if path.is_file() and path.suffix == SUFFIX:
        return False
    if path.is_file():
        raise InterchangeError(
            f"{path}: expected a directory with config.json and the weights, or a file named *{SUFFIX}, got "
            "another file; put it into a directory of its own, with the config.json of its model beside it"
        )
    if not path.is_dir():
        raise InterchangeError(f"there is no directory {path}")
    return (path / "config.json").is_file() and read_json(path / "config.json").get("format") == FORMAT


def _template(model: Model) -> Any:
    return model_shapes(model.task, model.config, N_C=len(model.labels))


class _Said(NamedTuple):
    """What a checkpoint says besides: the fields of its config.json, and its license."""

    fields: Fields
    license: str


def _read(
    path: Path, dtype: Any, progress: Callable[[int, int], None] = lambda n, total: None
) -> tuple[Model, dict[str, np.ndarray], Tokenizer, _Said]:
    """The model of a checkpoint, our arrays by name, its tokenizer, and what else it says."""
    if path.suffix == SUFFIX:
        state, tensors = open_gguf(path)
        architecture, fields = _architecture(path, state), Fields(path, state)
    else:
        _check_files(path)
        state = read_json(path / "config.json")
        architecture, fields = _architecture(path, state), Fields(path / "config.json", state)
        tensors = containers.Tensors(path)
    try:
        model = architecture.read_config(fields, tensors.names)
    except InterchangeError:
        raise
    except ValueError as error:  # sizes that do not fit together
        fields.check()
        raise InterchangeError(f"{fields.path}: {error}") from None
    fields.check()
    consistency.check(fields, model, tensors)
    leaves = mapping.read(
        tensors,
        architecture.entries(model, state),
        _template(model),
        prefix=architecture.prefix,
        ignored=architecture.ignored,
        dtype=dtype,
        progress=progress,
    )
    positions.check(tensors, model, architecture.ignored)
    if isinstance(tensors, GGUFTensors):
        tokenizer = gguf_tokenizer.read(path, tensors.file.metadata, model.config.N_V)
    else:
        tokenizer = tokenizer_files.read(path, fields, model)
    special: SpecialTokens = tokenizer_files.special_tokens(path, fields, model, None)
    return model, leaves, tokenizer or NumberTokenizer(special), _Said(fields, license_of(path, tensors))


def _check_files(path: Path) -> None:
    """Check that the paths of files are files, or raise InterchangeError if one is a pipe, or a directory."""
    for file in sorted(path.iterdir()):
        if file.suffix in SUFFIXES:
            try:
                require_file(file)
            except OSError as error:
                raise InterchangeError(f"{file}: {reason(error)}") from None


def _architecture(path: Path, state: dict[str, Any]) -> Architecture:
    name, known = state.get("model_type"), ", ".join(ARCHITECTURES)
    if name is None:
        likely = consistency.likely_type(containers.Tensors(path).names)
        advice = f'; its tensors are named as those of {likely}: add "model_type": "{likely}"' if likely else ""
        raise InterchangeError(f"{path / 'config.json'}: model_type: expected one of {known}, got none{advice}")
    if not isinstance(name, str):
        raise InterchangeError(f"{path / 'config.json'}: model_type: expected one of {known}, got {name!r}")
    if name in NEEDS:
        raise InterchangeError(f"{path} is a {name}, which needs {NEEDS[name]}: this library has {known}")
    if name not in ARCHITECTURES:
        raise InterchangeError(f"{path / 'config.json'}: model_type: expected one of {known}, got {name!r}")
    return ARCHITECTURES[name]


def _described(model: Model, to: str | None) -> tuple[str, dict[str, Any]]:
    """The kind of checkpoint that a model can be, and its config.json."""
    kinds = WRITTEN_AS.get(model.task, ())
    if not kinds:
        raise InterchangeError(f"a model of the task {model.task} cannot be written: no other library here reads it")
    if to is not None and to not in kinds:
        raise InterchangeError(
            f"a model of the task {model.task} cannot be written as {to!r}; choose one of {', '.join(kinds)}"
        )
    refused = []
    for kind in [to] if to else kinds:
        state, lacks = ARCHITECTURES[kind].write_config(model)
        if not lacks:
            return kind, state
        refused.append(f"{kind} has no {', no '.join(lacks)}")
    raise InterchangeError(f"the model cannot be written: {'; '.join(refused)}")


def _save(path: Path, model: Model, leaves: dict[str, Any], tokenizer: Tokenizer | None, to: str | None) -> None:
    kind, state = _described(model, to)

    def write(directory: Path) -> None:
        fields = tokenizer_files.write(directory, tokenizer, model) if tokenizer else {}
        dtype = jnp.result_type(*leaves.values()).name
        text = json.dumps({**state, **fields, "dtype": dtype}, indent=1, ensure_ascii=False)
        (directory / "config.json").write_text(text + "\n", encoding="utf-8")
        containers.write(directory, mapping.write(ARCHITECTURES[kind].entries(model, state), leaves))

    _write_whole(path, write)


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a directory beside the path, which gets its name when all is done."""
    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InterchangeError(f"{path} is there already; name another directory, or delete it")
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
    except OSError as error:
        raise InterchangeError(f"cannot write to {path}: {reason(error)}") from None
    try:
        write(unfinished)
        unfinished.chmod(0o755)
        unfinished.replace(path)
    except OSError as error:
        raise InterchangeError(f"cannot write to {path}: {reason(error)}") from None
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
