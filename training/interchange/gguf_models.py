"""Present a GGUF file as a checkpoint of `transformers`, with the fields of a config.json and the same tensor names.

One mapping then reads both, and `gguf_writing` writes by the same tables, `gguf_kinds`. A key that is not understood
raises an error that names it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from training.interchange.containers import Tensors
from training.interchange.errors import InterchangeError
from training.interchange.gguf_file import GGUFFile, Metadata
from training.interchange.gguf_hybrids import split
from training.interchange.gguf_kinds import KINDS, Kind
from training.interchange.gguf_rotary import ROPE_FACTORS
from training.interchange.mapping import Entry, Shape
from training.interchange.unsupported import NEEDS

TIED = "tie_word_embeddings"
"""Our own key, for models whose tensor output.weight repeats token_embd.weight."""
IN_TRANSFORMERS = {
    "command-r": "cohere",
    "gptneox": "gpt_neox",
    "modern-bert": "modernbert",
    "nomic-bert": "nomic_bert",
    "phi2": "phi",
    "qwen2moe": "qwen2_moe",
    "starcoder": "gpt_bigcode",
}
"""The names in transformers of architectures that GGUF names differently."""
_PARTS = {"gate": "gate_proj", "mlp1": "up_proj", "mlp2": "down_proj"}


def open_gguf(path: Path) -> "tuple[dict[str, Any], GGUFTensors]":
    """Return the fields of config.json and the tensors, each read on request. Raises InterchangeError if the file is
    damaged, or its model needs an unsupported feature.
    """
    file = GGUFFile(path)
    if file.metadata.get("split.count", 1) != 1:
        raise InterchangeError(
            f"{path} is one of {file.metadata['split.count']} files; join them first: llama-gguf-split --merge"
        )
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in KINDS:
        raise _unknown(path, str(architecture))
    state = state_of(file, architecture)
    return state, GGUFTensors(file, KINDS[architecture], state)


def state_of(file: Any, architecture: str) -> dict[str, Any]:
    """Return the fields of config.json for a GGUFFile. Raises InterchangeError for a key that is not understood."""
    metadata = Metadata(file, architecture)
    kind = KINDS[architecture]
    found = {**kind.read(metadata, kind.names), **kind.constants}
    found |= kind.rest(metadata, found)
    if not metadata.has("token_embd.weight"):
        raise InterchangeError(f"{file.path} has no tensor token_embd.weight, so it is not a language model")
    metadata.get("vocab_size")  # which its shape says
    tied = metadata.get(TIED, not metadata.has("output.weight"))
    metadata.check()
    N_V = file.tensors["token_embd.weight"].shape[0]
    shared = {"model_type": (*kind.types, architecture)[0], "vocab_size": N_V, "tie_word_embeddings": tied}
    return shared | found | _token_ids(file, N_V)


def _unknown(path: Path, architecture: str) -> InterchangeError:
    """Return the error about an unsupported architecture."""
    known = f"{', '.join([*KINDS][:-1])} and {[*KINDS][-1]}"
    needs = NEEDS.get(IN_TRANSFORMERS.get(architecture, architecture))
    if needs:
        return InterchangeError(
            f"{path} holds a model of the architecture {architecture}, which needs {needs}; in GGUF this library reads "
            f"{known}"
        )
    return InterchangeError(
        f"{path}: general.architecture: expected one of {known}, got {architecture[:60]!r}; if it has a checkpoint of "
        "transformers, convert that instead"
    )


def _token_ids(file: GGUFFile, N_V: int) -> dict[str, Any]:
    """Return the fields on special tokens; the file may name several that end a text."""

    def of(name: str) -> list[int]:
        token = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        return [token] if isinstance(token, int) and 0 <= token < N_V else []

    ends = list(dict.fromkeys(of("eos") + of("eot") + of("eom")))
    found = {"bos_token_id": of("bos"), "pad_token_id": of("padding"), "eos_token_id": ends}
    return {name: ids if len(ids) > 1 else ids[0] for name, ids in found.items() if ids}


def in_gguf(entries: list[Entry], names: Sequence[str] = ()) -> list[Entry]:
    """Return the tensors of a checkpoint as GGUF has them: the experts of a layer together, each matrix of theirs by
    itself, and latents' keys and values by head, unless one tensor has both among those of a file, its `names`.
    """
    found: dict[str, Entry] = {}
    for entry in entries:
        module, _, field = entry.name.rpartition(".")
        layer = ".".join(entry.name.split(".")[:3])
        if ".mlp.experts." in entry.leaves[0]:
            for leaf in entry.leaves:
                kind, _, part = leaf.rpartition(".")[2].partition("_")
                name = f"{layer}.mlp.experts.{_PARTS[part]}.{'weight' if kind == 'W' else 'bias'}"
                found[name] = Entry(name, (leaf,), entry.layer, of_experts=True)
        elif module.endswith(".kv_b_proj") and entry.name not in names:
            for kind, leaf in zip("kv", entry.leaves, strict=True):
                name = f"{layer}.self_attn.{kind}_b_proj.weight"
                found[name] = Entry(name, (leaf,), entry.layer, transposed=kind == "k", of_experts=True)
        else:
            name = {"sinks": f"{entry.name}.weight", "e_score_correction_bias": f"{entry.name[:-5]}.bias"}
            for one in split(entry._replace(name=name.get(field, entry.name))):
                found[one.name] = one
    return list(found.values())


def written(entries: list[Entry], kind: Kind) -> list[Entry]:
    """Return the tensors to write: those of `in_gguf`, and W_e once more where llama.cpp asks for W_u."""
    found = in_gguf(entries)
    by_name = {kind.name(entry.name): entry for entry in found}
    if not kind.repeats or "output.weight" in by_name:
        return found
    return [*found, by_name["token_embd.weight"]._replace(name=f"{kind.outer['output']}.weight")]


class GGUFTensors(Tensors):
    """The tensors of a GGUF file by their names in transformers, each dequantized on request."""

    def __init__(self, file: GGUFFile, kind: Kind, state: dict[str, Any]) -> None:
        self.path, self.file, self._kind, self._state = file.path, file, kind, state
        self._stored: dict[str, str] = {}  # the names in the file
        self._blocks: dict[str, tuple[int, Callable[[str], np.ndarray]]] = {}  # see `keep`
        for name in file.tensors:
            if name != ROPE_FACTORS and not (name == "output.weight" and state["tie_word_embeddings"]):
                theirs = kind.theirs(name)
                self._check_new(theirs, self._stored)
                self._stored[theirs] = name
        self.names = list(self._stored)

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        stored, (size, _) = self._stored[name], self._blocks.get(name, (1, None))
        *rows, numbers = self.file.tensors[stored].shape
        return self._kind.shape(stored, (*rows, numbers // size), self._state, write=False)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor."""
        stored, (_, read) = self._stored[name], self._blocks.get(name, (1, self.file.read))
        return self._kind.convert(stored, read(stored), self._state, write=False)

    def type(self, name: str) -> str:
        """Return the type of a tensor's numbers."""
        return self.file.tensors[self._stored[name]].type

    def keep(self, name: str, size: int, read: Callable[[str], np.ndarray]) -> None:
        """Let a matrix be read as `read` returns it, given its name in the file: blocks of this size of each row."""
        self._blocks[name] = size, read
