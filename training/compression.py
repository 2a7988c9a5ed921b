"""Compression with a trained decoder: a text's tokens are entropy-coded with the model's probabilities.

Prediction is compression: a text of probability p takes −log2 p bits. Encoder and decoder read the tokens one by one
with the same compiled step, so on one machine they compute bit-identical probabilities; streams of the text are coded
in parallel. A file is a line of JSON with everything needed to read it, followed by the bits of all streams.
"""

import functools
import importlib
import json
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from training.data.tokenizers import Tokenizer
from training.generation import Generator, decoding, states
from training.runs.named_arrays import checksums, flatten

__all__ = ["CompressionError", "compress", "decompress"]

FORMAT = "formal-algorithms compressed 2"
OLD_FORMAT = "formal-algorithms compressed 1"
RETRY = "decompress it with the version that made it, and compress it again"
STREAM_TOKENS = 4096
LONGEST = 1 << 25
"""Maximum number of tokens per byte of code: with four possible tokens, the likeliest takes at least 2^−22 bits."""
NOT_THE_SAME = "the decompressed text is not what was compressed: the file is damaged, or was made on another machine"


STREAM: Any = importlib.import_module("constriction").stream  # has no type annotations
MODEL = STREAM.model.Categorical(perfect=False)
WORD = np.dtype("<u4")


class CompressionError(ValueError):
    """A text cannot be compressed, or a file cannot be decompressed; the message is one sentence."""


def compress(text: str, generator: Generator, tokenizer: Tokenizer) -> bytes:
    """Compress a text. Raises CompressionError or DataError if the tokenizer does not reproduce it exactly."""
    tokens = np.array(tokenizer.encode(text), np.int32)
    if tokenizer.decode(tokens.tolist()) != text:
        raise CompressionError("this run's tokenizer does not reproduce the text exactly; train with bytes or bpe")
    streams = _streams(len(tokens))
    lengths = _lengths(len(tokens), streams)
    rows = np.zeros((streams, max(lengths, default=0)), np.int32)
    for row, part in zip(rows, np.split(tokens, np.cumsum(lengths)[:-1]), strict=True):
        row[: len(part)] = part
    predictor = _Predictor(generator, tokenizer, streams)
    encoder = Encoder()
    for t in range(rows.shape[1]):
        active = t < np.array(lengths)
        encoder.encode(predictor.probabilities()[active], rows[active, t])
        predictor.append(rows[:, t])
    code = encoder.finish()
    header = {
        "format": FORMAT,
        "tokens": len(tokens),
        "bytes": len(code),
        "checksum": zlib.crc32(text.encode()),
        "model": model_checksum(generator),
    }
    return (json.dumps(header) + "\n").encode() + code


def decompress(compressed: bytes, generator: Generator, tokenizer: Tokenizer) -> str:
    """Return the text compressed with the same model, on such a machine, or raise CompressionError."""
    header, code = _read(compressed)
    if header["model"] != model_checksum(generator):
        raise CompressionError("the text was compressed with another model; name the run that it was compressed with")
    streams = _streams(header["tokens"])
    lengths = _lengths(header["tokens"], streams)
    predictor = _Predictor(generator, tokenizer, streams)
    decoder = Decoder(code)
    rows = np.zeros((streams, max(lengths, default=0)), np.int32)
    for t in range(rows.shape[1]):
        active = t < np.array(lengths)
        try:
            rows[active, t] = decoder.decode(predictor.probabilities()[active])
        except AssertionError:  # an invalid code
            raise CompressionError(NOT_THE_SAME) from None
        predictor.append(rows[:, t])
    tokens = [token for row, length in zip(rows, lengths, strict=True) for token in row[:length].tolist()]
    text = tokenizer.decode(tokens)
    if zlib.crc32(text.encode(errors="replace")) != header["checksum"]:
        raise CompressionError(NOT_THE_SAME)
    return text


class Encoder:
    """Encodes symbols: one of probability p takes −log2 p bits. constriction rounds probabilities to nonzero integers
    with the sum 2^24, so that encoder and decoder narrow the same interval exactly.
    """

    def __init__(self) -> None:
        self._coder = STREAM.queue.RangeEncoder()

    def encode(self, P: Float[np.ndarray, "n N"], symbols: Int[np.ndarray, "n"]) -> None:
        """Append symbols, given the distribution of each. Raises ValueError unless these are numbers with a sum."""
        self._coder.encode(symbols.astype(np.int32), MODEL, _checked(P))

    def finish(self) -> bytes:
        """Return the bits of all symbols, as four-byte words."""
        return self._coder.get_compressed().astype(WORD).tobytes()


class Decoder:
    """Decodes symbols, in the order of encoding."""

    def __init__(self, code: bytes) -> None:
        self._coder = STREAM.queue.RangeDecoder(np.frombuffer(code, WORD).astype(np.uint32))

    def decode(self, P: Float[np.ndarray, "n N"]) -> Int[np.ndarray, "n"]:
        """Return the next symbols, given their distributions. Raises ValueError, or AssertionError for bad code."""
        return self._coder.decode(MODEL, _checked(P))


def _checked(P: np.ndarray) -> np.ndarray:
    P = np.ascontiguousarray(P, np.float64)
    if not np.all(np.isfinite(P)) or np.any(P < 0) or not np.all(P.sum(axis=1) > 0):
        raise ValueError("the model's probabilities are not numbers: the model cannot be used for compression")
    return P


def model_checksum(generator: Generator) -> int:
    """Return a checksum of a model's parameters and configuration."""
    leaves = {name: np.asarray(leaf) for name, leaf in flatten(generator.theta).items()}
    return zlib.crc32(json.dumps([checksums(leaves), repr(generator.config)], sort_keys=True).encode())


def _read(compressed: bytes) -> tuple[dict[str, Any], bytes]:
    line, newline, code = compressed.partition(b"\n")
    try:
        header = json.loads(line)
        if not newline or header["format"] not in (FORMAT, OLD_FORMAT):
            raise ValueError
        names = ("bytes", "tokens", "checksum", "model") if header["format"] == FORMAT else ()
        if not all(isinstance(header[name], int) and 0 <= header[name] < 1 << 48 for name in names):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise CompressionError("this is not a file that compress.py made") from None
    if header["format"] == OLD_FORMAT:
        raise CompressionError(f"the file is of an earlier version ({OLD_FORMAT!r}, expected {FORMAT!r}): {RETRY}")
    if header["bytes"] != len(code) or len(code) % 4:
        raise CompressionError(f"the file is damaged: expected {header['bytes']} bytes of code, got {len(code)}")
    if header["tokens"] > LONGEST * len(code):
        raise CompressionError(f"the file is damaged: {len(code)} bytes of code cannot hold {header['tokens']} tokens")
    return header, code


def _streams(n: int) -> int:
    """Return the number of streams for n tokens: 1, 2, 4, 8 or 16."""
    streams = 1
    while streams < 16 and n > 2 * streams * STREAM_TOKENS:
        streams *= 2
    return streams


def _lengths(n: int, streams: int) -> list[int]:
    return [n * (i + 1) // streams - n * i // streams for i in range(streams)]


class _Predictor:
    """The distribution of each stream's next token, given the last l_max/2 to l_max tokens."""

    def __init__(self, generator: Generator, tokenizer: Tokenizer, streams: int) -> None:
        self._generator = generator
        self._special = list(tokenizer.special_tokens)
        self._texts = np.full((streams, 1), tokenizer.bos_token, np.int32)
        self._begin(self._texts)

    def _begin(self, texts: np.ndarray) -> None:
        self._state = self._generator.read(texts, np.full(len(texts), texts.shape[1], np.int32))
        self._read = texts.shape[1] - 1

    def probabilities(self) -> np.ndarray:
        """Return the distribution of each stream's next token, ``[streams, N_V]``, with special tokens set to 0."""
        generator = self._generator
        P, self._state = _advance(generator.weights, self._state)
        self._read += 1
        P = np.array(P.T, np.float64)
        P[:, self._special] = 0
        return P

    def append(self, tokens: np.ndarray) -> None:
        """Append the next token of each stream."""
        l_max = self._generator.config.l_max
        self._texts = np.concatenate([self._texts, tokens[:, None]], axis=1)[:, -l_max:]
        if self._read == l_max:
            self._begin(self._texts[:, -max(1, l_max // 2) :])
            return
        C = self._state.tokens.shape[1]
        if int(self._state.slot) + 1 >= C:
            self._state = states.grow(self._state, C=2 * C)
        self._state = _append(self._state, jnp.asarray(tokens))


@functools.partial(jax.jit, donate_argnames=("state",))
def _advance(weights, state):
    P, caches = decoding.step(weights, None, state)
    return P, state._replace(caches=caches)


@functools.partial(jax.jit, donate_argnames=("state",))
def _append(state, tokens):
    slot = state.slot + 1
    return state._replace(
        tokens=jax.lax.dynamic_update_slice_in_dim(state.tokens, tokens[:, None], slot, axis=1), slot=slot
    )
