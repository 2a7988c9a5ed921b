"""Present a GGUF file as a checkpoint: its metadata as the fields of a config.json, and its tensors by name.

`gguf_kinds` has the tables, by which `gguf_writing` writes. A key that is not understood raises an error that names it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from training.interchange.architectures import ARCHITECTURES
from training.interchange.containers import Tensors
from training.interchange.description import CYCLE
from training.interchange.errors import InterchangeError
from training.interchange.gguf_fields import ROPE_FACTORS
from training.interchange.gguf_file import GGUFFile, Metadata
from training.interchange.gguf_kinds import KINDS, LISTED, TOKENS, W_U, Kind
from training.interchange.mapping import Shape
from training.interchange.unsupported import NEEDS

TIED = "tie_word_embeddings"
"""Our own key, for models whose tensor output.weight repeats token_embd.weight."""
IN_TRANSFORMERS = {
    "command-r": "cohere",
    "gptneox": "gpt_neox",
    "modern-bert": "modernbert",
    "nomic-bert": "nomic_bert",
    "phi2": "phi",
    "starcoder": "gpt_bigcode",
}
"""The names in transformers of architectures that GGUF names differently."""


def open_gguf(source: Path | GGUFFile) -> "tuple[dict[str, Any], GGUFTensors]":
    """Return the fields of config.json and the tensors, each read on request. Raises InterchangeError if the file is
    damaged, or its model needs an unsupported feature.
    """
    file = source if isinstance(source, GGUFFile) else GGUFFile(source)
    path = file.path
    if file.metadata.get("split.count", 1) not in (0, 1):  # 0: of several files, joined
        raise InterchangeError(
            f"{path} is one of {file.metadata['split.count']} files; join them first: llama-gguf-split --merge"
        )
    architecture = file.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in KINDS:
        raise _unknown(path, str(architecture))
    state = state_of(file, architecture)
    return renamed(state), GGUFTensors(file, KINDS[architecture], state)


def renamed(state: dict[str, Any], *, back: bool = False) -> dict[str, Any]:
    """Return fields with the names that their kind of checkpoint has for Llama's, which the tables have; or `back`."""
    own, of_llama = (ARCHITECTURES[kind].names for kind in (state["model_type"], "llama"))
    pairs = [(name, own[ours]) for ours, name in of_llama.items() if ours in own]
    names = dict(pair[::-1] for pair in pairs) if back else dict(pairs)
    return {names.get(name, name): value for name, value in state.items()}


def state_of(file: Any, architecture: str) -> dict[str, Any]:
    """Return the fields of a GGUFFile, by Llama's names. Raises InterchangeError for a key that is not understood."""
    metadata = Metadata(file, architecture)
    kind = KINDS[architecture]
    found = kind.fields(metadata)
    if not metadata.has(TOKENS):
        raise InterchangeError(f"{file.path} has no tensor {TOKENS}, so it is not a language model")
    metadata.get("vocab_size")  # which its shape says
    tied = metadata.get(TIED, not metadata.has(W_U))
    found |= {CYCLE: metadata.get(CYCLE)} if metadata.get(CYCLE) else {}
    metadata.check()
    N_V = file.tensors[TOKENS].shape[0]
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


class GGUFTensors(Tensors):
    """The tensors of a GGUF file, each dequantized on request."""

    def __init__(self, file: GGUFFile, kind: Kind, state: dict[str, Any]) -> None:
        self.path, self.file, self.kind, self._state = file.path, file, kind, state
        self._blocks: dict[str, tuple[int, Callable[[str], np.ndarray]]] = {}  # see `keep`
        without = (ROPE_FACTORS, *([W_U] if state["tie_word_embeddings"] else []))
        self._listed = {
            f"blk.{l}.{name}": np.array([number], np.float32)
            for name in kind.layer
            if LISTED in f".{name}"
            for l, number in enumerate(file.metadata.get(name, ()))
        }
        self.names = [name for name in (*file.tensors, *self._listed) if name not in without]

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        if name in self._listed:
            return (1,)
        (*rows, numbers), (size, _) = self.file.tensors[name].shape, self._blocks.get(name, (1, None))
        return self.kind.shape(name, (*rows, numbers // size), self._state, write=False)

    def read(self, name: str) -> np.ndarray:
        """Return a tensor."""
        if name in self._listed:
            return self._listed[name]
        _, read = self._blocks.get(name, (1, self.file.read))
        return self.kind.convert(name, read(name), self._state, write=False)

    def type(self, name: str) -> str:
        """Return the type of a tensor's numbers."""
        return self.file.tensors[name].type

    def keep(self, name: str, size: int, read: Callable[[str], np.ndarray]) -> None:
        """Let a matrix be read as `read` returns it, given its name: blocks of this size of each row."""
        self._blocks[name] = size, read
