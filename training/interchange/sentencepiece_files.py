"""Read the SentencePiece model beside a checkpoint that has no tokenizer.json, as one of the library `tokenizers`.

The package is in the extra ``translation``.
"""

import importlib
from pathlib import Path
from typing import Any

from training.data.tokenizers import LibraryTokenizer
from training.extras import install
from training.interchange import gguf_tokenizer
from training.interchange.errors import InterchangeError

NAME = "tokenizer.model"
SAMPLES = (
    "The quick brown fox jumps over the lazy dog, 1234 times.",
    "  two spaces, a\ttab and\na line; café, naïve, Привет, 你好, 🎉 <s> ▁x",
    "def f(x):\n    return x ** 2  # comment",
)
"""Texts on which the library's tokenizer has to agree with SentencePiece's own."""


def read(path: Path, N_V: int) -> LibraryTokenizer | None:
    """Return the tokenizer of a model with N_V tokens; None if there is no such file. Raises InterchangeError without
    the package, or if it is of another kind than byte pair encoding, or has more tokens than the model.
    """
    file = path / NAME
    if not file.is_file():
        return None
    try:
        processor = importlib.import_module("sentencepiece").SentencePieceProcessor(model_proto=file.read_bytes())
    except ModuleNotFoundError:
        raise InterchangeError(f"{file}: reading it needs sentencepiece: {install('translation')}") from None
    except (OSError, RuntimeError) as error:
        raise InterchangeError(f"{file}: expected a SentencePiece model ({str(error)[:80]})") from None
    found = gguf_tokenizer.read(file, _metadata(processor), N_V)
    assert found
    for text in SAMPLES:
        if found.encode(text) != processor.encode(text):
            raise InterchangeError(
                f"{file}: expected byte pair encoding of SentencePiece's usual kind, got one that splits "
                f"{text[:20]!r}… in another way; add the model's tokenizer.json"
            )
    return found


def _metadata(model: Any) -> dict[str, Any]:
    """Return what a GGUF file says of a SentencePiece model."""
    n = model.get_piece_size()
    kinds = (
        (model.is_unknown, gguf_tokenizer.UNKNOWN),
        (model.is_control, gguf_tokenizer.CONTROL),
        (model.is_unused, gguf_tokenizer.UNUSED),
        (model.is_byte, gguf_tokenizer.BYTE),
    )
    named = {"bos": model.bos_id(), "eos": model.eos_id()}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in range(n)],
        "tokenizer.ggml.scores": [float(model.get_score(i)) for i in range(n)],
        "tokenizer.ggml.token_type": [
            next((kind for of, kind in kinds if of(i)), gguf_tokenizer.NORMAL) for i in range(n)
        ],
        "tokenizer.ggml.add_space_prefix": model.encode("a", out_type=str)[0].startswith("▁"),
        **{f"tokenizer.ggml.{name}_token_id": token for name, token in named.items() if token >= 0},
    }
