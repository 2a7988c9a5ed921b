"""Read and write other libraries' checkpoints, so that their weights run through Algorithms 8 to 10, and ours there.

    theta, config, tokenizer = load_pretrained("gpt2-directory")
    P = d_transformer(x, theta)
    save_pretrained("elsewhere", theta, config, tokenizer)      # opens in transformers
    convert("gpt2-directory", "runs/gpt2")                      # a directory that every script accepts as a run
    save_pretrained("model.gguf", theta, config, tokenizer)     # opens in llama.cpp
    convert("runs/taught", "adapter")                           # a run's low-rank adapter, as PEFT files
    save_pretrained("mine", theta, config, to="run")            # any model, also with custom lines

Every tensor of a checkpoint is one of our arrays, a slice of one, or several stacked, so both directions are exact to
the last bit. A directory is written completely or not at all. docs/weights.md lists the supported kinds and how each
was compared.
"""

import json
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import DTransformerParams, EDTransformerParams, ETransformerParams
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import NumberTokenizer, Tokenizer
from training.disk import local_path, read_text, reason, require_file, write_atomically
from training.interchange import (
    consistency,
    containers,
    gguf_blocks,
    gguf_tokenizer,
    gguf_writing,
    mapping,
    peft,
    tokenizer_files,
    towers,
)
from training.interchange.architectures import ARCHITECTURES, WRITTEN_AS
from training.interchange.description import Architecture, Fields, Model, read_json
from training.interchange.encoders_of_decoders import kind_of
from training.interchange.errors import InterchangeError
from training.interchange.gguf_file import SUFFIX, GGUFFile
from training.interchange.gguf_models import GGUFTensors, open_gguf
from training.interchange.hub import downloaded
from training.interchange.mapping import Entry
from training.interchange.unsupported import NEEDS
from training.runs.directory import FORMAT, Description, Run, RunDirectory
from training.runs.named_arrays import flatten, unflatten
from training.runs.trained_model import FROZEN, frozen_fingerprint, load_run, read_adapter
from training.tasks import TASKS, settings_from
from training.tasks.classify import ClassifierParams
from training.tasks.gato_embedding import GatoParams
from training.tasks.low_rank import adapter_shapes, scale_of
from training.tasks.models import model_shapes
from training.tasks.own_lines import has_custom_lines, setting_of

RUN, GGUF = "run", "gguf"
"""The kinds of our own files, and of a file for llama.cpp."""
STORED = "stored"
"""In place of a dtype: that which keeps what a file has in the least space."""
SUFFIXES = (".json", ".txt", ".spm", ".safetensors", ".bin", ".pt", ".pth")
"""Suffixes of a checkpoint's files."""
CARD = "README.md"
"""The model card, which begins with YAML fields between two lines of dashes."""
Lacks = Callable[[dict[str, Any], list[Entry]], list[str]]
TASK_OF = {
    DTransformerParams: "d",
    ETransformerParams: "e",
    EDTransformerParams: "ed",
    ClassifierParams: "classify",
    GatoParams: "gato",
}
"""The task that trains each class of parameters."""


def load_pretrained(path: str | Path, *, lines: Sequence[str] = ()) -> tuple[Any, Any, Tokenizer | None]:
    """Read a checkpoint of another library, or a run directory.

    Args:
        path: a directory with config.json and the weights (model.safetensors, shards with their index, or a PyTorch
            file, which is read without executing any code in it), or a GGUF file, which holds everything; of a model
            that sees or hears, the text model is read, with a warning; or
            ``hf:OWNER/NAME`` or ``hf:OWNER/NAME@REVISION``, which is downloaded first.
        lines: packages that are not installed, from which a run may import its custom lines.

    Returns:
        the parameters, the configuration, whose variant is that of θ, and the tokenizer, or None if there is none that
        can be read.

    Raises:
        InterchangeError: the model needs an unsupported feature, or the files are damaged or contradict each other.
    """
    model = load_model(path, lines=lines)
    tokenizer = None if isinstance(model.tokenizer, NumberTokenizer) else model.tokenizer
    return model.theta, model.config, tokenizer


def load_model(path: str | Path, *, dtype: Any = None, lines: Sequence[str] = ()) -> Run:
    """Read a checkpoint as `load_pretrained` does, or a run as `training.runs.trained_model.load_run` does, cast to
    `dtype`. Raises InterchangeError as `load_pretrained`.
    """
    local = downloaded(str(path))
    if is_ours(local):
        return load_run(local, dtype=dtype, lines=lines)
    found = _read(local, dtype)
    return found.run(unflatten(found.template, {n: jnp.asarray(found.leaves.pop(n)) for n in list(found.leaves)}))


def load_quantized(
    source: str | Path | GGUFFile, *, dtype: Any = None, progress: Callable[[int, int], None] = lambda n, total: None
) -> Run:
    """Read a GGUF file as `load_pretrained` does, but for inference: its quantized matrices stay in blocks, those that
    `gguf_blocks` says; the model computes in `dtype` (None: float32).
    """
    dtype = np.dtype(np.float32 if dtype is None else dtype)
    source = source if isinstance(source, GGUFFile) else local_path(source)
    found = _read(source, dtype, progress, in_blocks=True)
    return found.run(gguf_blocks.untied(unflatten(found.template, gguf_blocks.loaded(found.leaves, dtype))))


def save_pretrained(
    path: str | Path,
    theta: Any,
    config: Any,
    tokenizer: Tokenizer | None = None,
    *,
    to: str | None = None,
    labels: tuple[str, ...] = (),
    quantize: str | None = None,
) -> None:
    """Write parameters as a checkpoint that transformers opens, or as a GGUF file, with the same logits.

    Args:
        path: the directory to write, or a GGUF file, which llama.cpp opens, too; it must not exist, or be empty.
        theta: the parameters.
        config: sizes and variant.
        tokenizer: written beside the parameters.
        to: the kind of model, such as "gpt2"; None: the first kind that can express this model. "run" writes our own
            files, which hold every model, with custom lines, too; `load_pretrained` and the scripts read them.
        labels: a classifier's class names, in order.
        quantize: for a GGUF file, the type that matrices are rounded to, one of `gguf_writing.QUANTIZED`; None: theirs.

    Raises:
        InterchangeError: no kind can express this model; lists what each lacks.
    """
    task = TASK_OF.get(type(theta))
    if task is None or not isinstance(config, TASKS[task].config):
        raise InterchangeError(
            f"expected a model's parameters and their configuration, got {type(theta).__name__} and "
            f"{type(config).__name__}"
        )
    own = {"classify": "encoder", "gato": "transformer"}.get(task)
    variant = (getattr(theta, own) if own else theta).variant
    if config.variant != variant:
        raise InterchangeError(
            f"config.variant: expected θ's own, {variant!r}, got {config.variant!r}; give the configuration that θ was "
            "made for"
        )
    if task == "classify" and not labels:
        labels = tuple(f"LABEL_{i}" for i in range(theta.W_c.shape[0]))
    model, leaves = Model(task, config, labels), flatten(theta)
    to = _kind_of(local_path(path), to, quantize)
    if to == RUN and local_path(path).suffix != SUFFIX:
        _save_run(local_path(path), model, {name: np.ascontiguousarray(a) for name, a in leaves.items()}, tokenizer)
    else:
        _save(local_path(path), model, leaves, tokenizer, to, quantize)


def _kind_of(path: Path, to: str | None, quantize: str | None) -> str | None:
    """Return the kind of files to write; "gguf", which is a file's, is None then."""
    if to == GGUF and path.suffix != SUFFIX:
        raise InterchangeError(f"--to {GGUF}: expected a file named *{SUFFIX}, got {path}; write {path}{SUFFIX}")
    if quantize is not None and path.suffix != SUFFIX:
        raise InterchangeError(f"--quantize: expected a file named *{SUFFIX} with it, got {path}; leave it out")
    return None if to == GGUF else to


def convert(
    source: str | Path,
    target: str | Path,
    *,
    to: str | None = None,
    dtype: Any = None,
    merge: bool = False,
    adapted: str | Path | None = None,
    lines: Sequence[str] = (),
    origin: str = "",
    quantize: str | None = None,
    progress: Callable[[int, int], None] = lambda n, total: None,
) -> str:
    """Convert a checkpoint to a directory that the scripts accept as a run, or a run to a checkpoint.

    Args:
        source: the directory of a checkpoint, a run or a PEFT adapter, or a GGUF file.
        target: the directory or the GGUF file to write; it must not exist, or be empty.
        to: the kind of checkpoint to write, such as "gpt2", or "run"; None: for a run, the first kind that can
            express it.
        dtype: cast the parameters to this type; None: float32 for a GGUF file, theirs for others; `STORED`: theirs.
        merge: write a run and its adapter as one checkpoint, instead of the adapter alone as PEFT files.
        adapted: the run that a PEFT adapter adapts.
        lines: as in `load_pretrained`.
        origin: the name on the hub, and the revision, that config.json records.
        quantize: as in `save_pretrained`.
        progress: called with the number of tensors read since the last call, and the total.

    Returns:
        a sentence on what was done; for a checkpoint also its size and its license.

    Raises:
        InterchangeError: as `load_pretrained` and `save_pretrained`; nothing is written then.
    """
    source, target = local_path(source), local_path(target)
    is_peft = adapted is not None or (source.is_dir() and peft.is_adapter(source))
    files = RunDirectory(source, lines=lines)
    has_adapter = not is_peft and is_ours(source) and files.description().settings.lora_rank
    if merge and not has_adapter:
        raise InterchangeError(f"--merge: expected a run with an adapter (--lora-rank), got {source}; leave it out")
    if dtype not in (None, STORED) and (is_peft or (has_adapter and not merge)):
        raise InterchangeError(f"--dtype: expected none for an adapter, which is in float32, got {dtype}; leave it out")
    to = _kind_of(target, to, quantize)
    if is_peft:
        return _read_adapter(source, target, adapted, lines)
    if has_adapter and not merge:
        return _save_adapter(files, target, to)
    if is_ours(source):
        with jax.enable_x64(True):  # float64 stays float64
            run = load_run(source, dtype=dtype, lines=lines)
        save_pretrained(target, run.theta, run.config, run.tokenizer, to=to, labels=run.labels, quantize=quantize)
        opens = "transformers opens" if target.suffix != SUFFIX else "llama.cpp and load_pretrained open"
        return f"Converted {source} to {target}, which {'the scripts accept as a run' if to == RUN else opens}."
    found = _read(source, dtype, progress)
    model, leaves, tokenizer = found.model, found.leaves, found.tokenizer
    left_out = found.left_out and f"\nnote: {found.left_out}"
    about = f"\n{_size(leaves)}; {found.license}{left_out}"
    if target.suffix == SUFFIX or (to and to != RUN):
        _save(target, model, leaves, tokenizer, to, quantize)
        kind = "GGUF file" if target.suffix == SUFFIX else f"checkpoint of the kind {to}"
        return f"Converted {source} to {target}, a {kind}.{about}"
    note = _no_eos(found.fields, model) if tokenizer.end is None else ""
    _save_run(target, model, leaves, tokenizer, origin)
    return f"Converted {source} to {target}, which the scripts accept as a run.{about}{note}"


def _size(leaves: dict[str, np.ndarray]) -> str:
    dtype, n_bytes = jnp.result_type(*leaves.values()).name, sum(a.nbytes for a in leaves.values())
    return f"{sum(a.size for a in leaves.values()):,} parameters, {n_bytes / 1e6:,.1f} MB in {dtype}"


def _save_adapter(files: RunDirectory, target: Path, to: str | None) -> str:
    """Write the adapter of a run as PEFT files."""
    description = files.description()
    shapes = model_shapes("d", description.config)
    _, entries = _described(Model("d", description.config), to, WRITTEN_AS["d"])
    adapter, scale = read_adapter(files, description, shapes), scale_of(description.settings)
    _write_whole(target, lambda directory: peft.write(directory, entries, adapter, shapes, scale))
    return (
        f"Wrote the adapter of {files.path} to {target}. PEFT opens it beside the model that "
        f"convert.py {description.settings.start_from} writes; convert.py --merge writes both as one."
    )


def _read_adapter(source: Path, target: Path, adapted: str | Path | None, lines: Sequence[str]) -> str:
    """Write PEFT files as a run that adapts another run."""
    if adapted is None:
        raise InterchangeError(f"{source} is an adapter: expected --from RUN, the model that it adapts, got none")
    if not (source.is_dir() and peft.is_adapter(source)):
        raise InterchangeError(f"--from: expected a PEFT adapter, with {peft.CONFIG}, got {source}; leave it out")
    if not is_ours(local_path(adapted)):
        raise InterchangeError(f"--from: expected the directory of a run, got {adapted}; convert it first")
    base = load_run(adapted, lines=lines)
    if base.task != "d":
        raise InterchangeError(f"--from: expected a decoder, got {adapted} of the task {base.task}; name the model")
    _, entries = _described(Model(base.task, base.config), None, WRITTEN_AS["d"])
    found = peft.read(source, entries, base.theta)
    values = settings_of(base.task, base.config) | {
        "start_from": str(Path(adapted).absolute()),
        "lora_rank": found.rank,
        "lora_alpha": found.alpha,
        "lora_matrices": found.matrices,
        "data": (),
    }
    settings = settings_from(values, task="d")
    adapter_shapes(base.theta, settings)
    fingerprints = {"tokenizer": base.tokenizer.fingerprint(), FROZEN: frozen_fingerprint(base.theta)}
    description = Description(settings, base.config, (), fingerprints)
    _write_run(target, description, base.tokenizer, found.leaves, is_adapter=True)
    return f"Converted {source} to {target}, which adapts {adapted} and which the scripts accept as a run."


def _no_eos(fields: Fields, model: Model) -> str:
    """Return a note on a model without an eos token. Raises InterchangeError if the model is a translator."""
    token = fields.get("eos_token_id")
    wrong = f"{fields.path}: eos_token_id: expected a token below N_V = {model.config.N_V}, got {token!r}"
    if model.task == "ed":
        raise InterchangeError(f"{wrong}; translations would never end: name the token that ends them")
    return f"\nnote: {wrong}; so generation continues to the full length, and the model cannot be trained further."


def settings_of(task: str, config: Any) -> dict[str, Any]:
    """Return the settings of a task that a configuration determines: its sizes, and the name of its variant."""
    sizes = {name: getattr(config, name) for name in TASKS[task].all_settings() if hasattr(config, name)}
    return {**sizes, "variant": setting_of(config.variant)}


def is_ours(path: Path) -> bool:
    """Return whether a path is the directory of a run, trained or converted. Raises InterchangeError if it does not
    exist, or is a file other than GGUF.
    """
    if path.is_file() and path.suffix == SUFFIX:
        return False
    if path.is_file():
        raise InterchangeError(
            f"{path}: expected a directory with config.json and the weights, or a file named *{SUFFIX}, got "
            "another file; put it into a directory together with its model's config.json"
        )
    if not path.is_dir():
        raise InterchangeError(f"there is no {'file' if path.suffix == SUFFIX else 'directory'} {path}")
    return (path / "config.json").is_file() and read_json(path / "config.json").get("format") == FORMAT


class _Checkpoint(NamedTuple):
    """A checkpoint that was read."""

    model: Model
    template: Any  # the shapes of our parameters
    leaves: dict[str, np.ndarray]  # our arrays, by name
    tokenizer: Tokenizer
    fields: Fields  # of its config.json
    license: str
    left_out: str  # a note on that; "": nothing

    def run(self, theta: Any) -> Run:
        """Return a run with these parameters, with a warning if something of the checkpoint was left out."""
        if self.left_out:
            warnings.warn(f"{self.fields.path.parent}: {self.left_out}", stacklevel=4)
        return Run(theta, self.model.config, self.tokenizer, self.model.task, self.model.labels)


def _read(
    source: Path | GGUFFile,
    dtype: Any,
    progress: Callable[[int, int], None] = lambda n, total: None,
    *,
    in_blocks: bool = False,
) -> _Checkpoint:
    path, note = source.path if isinstance(source, GGUFFile) else source, ""
    if path.suffix == SUFFIX:
        state, tensors = open_gguf(source)
        architecture, fields = _architecture(path, state), Fields(path, state)
        dtype = tensors.file.precision if dtype == STORED else dtype
    else:
        dtype = None if dtype == STORED else dtype
        _check_files(path)
        whole = read_json(path / "config.json")
        state = towers.text_fields(Fields(path / "config.json", whole), whole)
        architecture, fields = _architecture(path, state), Fields(path / "config.json", state)
        tensors = containers.dequantized(containers.Tensors(path), fields.get("quantization_config"))
        note = towers.leave_out(tensors) if state is not whole else ""
    try:
        model = architecture.read_config(fields, tensors.names)
    except InterchangeError:
        raise
    except ValueError as error:  # sizes that contradict each other
        fields.check()
        raise InterchangeError(f"{fields.path}: {error}") from None
    fields.check()
    consistency.check(fields, model, tensors, counts_mlps=architecture.counts_mlps)
    note = "; ".join(filter(None, (note, consistency.heads_left_out(fields, model, tensors.names))))
    architecture.rearrange(tensors, model)
    template = model_shapes(model.task, model.config, N_C=len(model.labels))
    of_gguf = tensors.kind.entries(model, tensors.names) if isinstance(tensors, GGUFTensors) else []
    entries = of_gguf or architecture.entries(model, state)
    if isinstance(tensors, GGUFTensors) and in_blocks:
        template = gguf_blocks.kept(tensors, entries, template)
    leaves = mapping.read(
        tensors,
        entries,
        template,
        prefix="" if of_gguf else architecture.prefix,
        ignored=consistency.ignored(fields, model, architecture),
        dtype=dtype,
        progress=progress,
    )
    consistency.check_positions(tensors, model, architecture.ignored)
    if isinstance(tensors, GGUFTensors):
        tokenizer = gguf_tokenizer.read(path, tensors.file.metadata, model.config.N_V)
    else:
        tokenizer = tokenizer_files.read(path, fields, model) or gguf_tokenizer.read_pieces(path, model.config.N_V)
    tokenizer = tokenizer or NumberTokenizer(tokenizer_files.special_tokens(path, fields, model, None))
    return _Checkpoint(model, template, leaves, tokenizer, fields, license_of(path, tensors), note)


def license_of(path: Path, tensors: object) -> str:
    """Return the license of a checkpoint in a directory or GGUF file, or a note that it states none."""
    in_gguf = isinstance(tensors, GGUFTensors)
    said = tensors.file.metadata.get("general.license") if in_gguf else _of_card(path / CARD)
    if isinstance(said, str) and said.strip():
        return f"license: {said.strip()[:60]}"
    texts = [] if in_gguf else sorted(file.name for file in path.glob("LICENSE*"))
    return f"license: see its file {texts[0]}" if texts else "license: not stated in its files"


def _of_card(card: Path) -> str | None:
    """Return the field `license_name`, which accompanies the license "other", or else the field `license`."""
    if not card.is_file():
        return None
    try:
        lines = read_text(card).splitlines()
    except (OSError, ValueError):  # the model can be used without its card
        return None
    if not lines or lines[0].strip() != "---":
        return None
    end = next((i for i, line in enumerate(lines[1:], 1) if line.strip() == "---"), 0)
    fields = dict(line.split(":", 1) for line in lines[1:end] if ":" in line and not line.startswith((" ", "-")))
    found = {name: fields.get(name, "").strip().strip("'\"") for name in ("license", "license_name")}
    return found["license_name"] or found["license"] or None


def _check_files(path: Path) -> None:
    """Raise InterchangeError if a pipe or a directory has the name of a checkpoint's file."""
    for file in sorted(path.iterdir()):
        if file.suffix in SUFFIXES:
            try:
                require_file(file)
            except OSError as error:
                raise InterchangeError(f"{file}: {reason(error)}") from None


def _architecture(path: Path, state: dict[str, Any]) -> Architecture:
    name, known = kind_of(state), ", ".join(ARCHITECTURES)
    if isinstance(name, str) and name in ARCHITECTURES:
        return ARCHITECTURES[name]
    if isinstance(name, str) and name in NEEDS:
        raise InterchangeError(f"{path} is a {name}, which needs {NEEDS[name]}; this library supports {known}")
    got = "none; add it" if name is None else repr(name)
    raise InterchangeError(f"{path / 'config.json'}: model_type: expected one of {known}, got {got}")


def _described(
    model: Model, to: str | None, kinds: Sequence[str], lacks_also: Lacks = lambda *_: []
) -> tuple[dict[str, Any], list[Entry]]:
    """Return the config.json and the tensors of the first of `kinds`, or `to`, that can express a model; `lacks_also`
    returns what files with these lack besides.
    """
    if not kinds:
        raise InterchangeError(f"a model of the task {model.task} cannot be written: no other library here reads it")
    if to is not None and to not in kinds:
        raise InterchangeError(
            f"a model of the task {model.task} cannot be written as {to!r}; choose one of {', '.join(kinds)}"
        )
    refused, nearly = [], []
    for kind in [to] if to else kinds:
        state, lacks = ARCHITECTURES[kind].write_config(model)
        entries = [] if lacks else ARCHITECTURES[kind].entries(model, state)
        found = nearly if not lacks else refused
        lacks = lacks or lacks_also(state, entries)
        if not lacks:
            return state, entries
        found.append(f"{kind} has no {', no '.join(lacks)}")
    if has_custom_lines(model.config.variant):
        raise InterchangeError(
            f"the model cannot be written for other libraries, which do not have its lines, {model.config.variant!r}; "
            f'give --to {RUN} (to="{RUN}" in Python) for files of its own'
        )
    fitting = next((kind for kind in kinds if to and not ARCHITECTURES[kind].write_config(model)[1]), None)
    if fitting:
        more = f", and lacks {len(lacks) - 1} more" * (len(lacks) > 1)
        raise InterchangeError(
            f"the model cannot be written as {to}, which has no {lacks[0]}{more}; leave out --to, for {fitting}"
        )
    raise InterchangeError(f"the model cannot be written: {'; '.join(nearly or refused)}")


def _save(
    path: Path, model: Model, leaves: dict[str, Any], tokenizer: Tokenizer | None, to: str | None, quantize: str | None
) -> None:
    if path.suffix == SUFFIX:
        _save_gguf(path, model, leaves, tokenizer, to, quantize)
        return
    state, entries = _described(model, to, WRITTEN_AS.get(model.task, ()))

    def write(directory: Path) -> None:
        fields = tokenizer_files.write(directory, tokenizer, model) if tokenizer else {}
        dtype = jnp.result_type(*leaves.values()).name
        text = json.dumps({**state, **fields, "dtype": dtype}, indent=1, ensure_ascii=False)
        (directory / "config.json").write_text(text + "\n", encoding="utf-8")
        containers.write(directory, mapping.write(entries, leaves))

    _write_whole(path, write)


def _save_gguf(
    path: Path, model: Model, leaves: dict[str, Any], tokenizer: Tokenizer | None, to: str | None, quantize: str | None
) -> None:
    model, leaves = gguf_writing.folded(model, leaves)

    def draft(state: dict[str, Any]) -> gguf_writing.Draft:
        return gguf_writing.draft(path, model, state, leaves, quantize)

    def lacks(state: dict[str, Any], entries: list[Entry]) -> list[str]:
        return gguf_writing.lost(draft(state), model, ARCHITECTURES[state["model_type"]])

    kinds = [kind for kind in WRITTEN_AS.get(model.task, ()) if kind in gguf_writing.OF_TYPE]
    if not kinds:
        raise InterchangeError(f"{path}: expected a decoder to write as GGUF, got a model of the task {model.task}")
    state, _ = _described(model, to, kinds, lacks)
    file, architecture = draft(state), gguf_writing.OF_TYPE[state["model_type"]]
    file.metadata.update(gguf_tokenizer.metadata_of(path, tokenizer, model, architecture))
    _write_whole(path, lambda unfinished: gguf_writing.write(unfinished, file, state, model, leaves))


def _save_run(
    path: Path, model: Model, leaves: dict[str, np.ndarray], tokenizer: Tokenizer | None, origin: str = ""
) -> None:
    """Write a model as a run; without a tokenizer, texts are token IDs, the last three of them special."""
    N_V = model.config.N_V
    tokenizer = tokenizer or NumberTokenizer(SpecialTokens(N_V, mask=N_V - 3, bos=N_V - 2, eos=N_V - 1))
    settings = settings_from({**settings_of(model.task, model.config), "data": ()}, task=model.task)
    description = Description(settings, model.config, model.labels, {"tokenizer": tokenizer.fingerprint()}, origin)
    _write_run(path, description, tokenizer, leaves)


def _write_run(path: Path, about: Description, tokenizer: Tokenizer, leaves: Any, *, is_adapter: bool = False) -> None:
    def write(directory: Path) -> None:
        run = RunDirectory(directory)
        run.note(about, tokenizer)
        run.save_leaves(leaves, run.adapter if is_adapter else None)

    _write_whole(path, write)


def _write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary directory, or write a temporary GGUF file; rename it to the path when complete."""

    def write_new(unfinished: Path) -> None:
        if path.suffix != SUFFIX:
            unfinished.mkdir()
        write(unfinished)

    try:
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise InterchangeError(f"{path} already exists; give another name, or delete it")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, write_new)
    except OSError as error:
        raise InterchangeError(f"cannot write to {path}: {reason(error)}") from None
