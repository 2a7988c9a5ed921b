"""Quantized GGUF files whose blocks stay in memory: products, lookups and models, as of the dequantized numbers."""

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import VARIANTS, DTransformerConfig, d_logits, init_d_transformer
from algorithms.ops.linear import linear, logits
from tests import cases, gguf_cases
from training.benchmarks.timing import temporary_bytes
from training.command_line.named_models import model_of
from training.data.tokenizers import ByteTokenizer
from training.generation import Generator
from training.generation.quantized import TILE, QuantizedMatrix, QuantizedTable
from training.interchange import convert, gguf_blocks, gguf_writing, load_pretrained, load_quantized, save_pretrained
from training.interchange.gguf_file import GGUFFile
from training.interchange.names import as_run
from training.runs.named_arrays import flatten, name_of

gguf = gguf_cases.gguf
normal = functools.partial(cases.normal, dtype=jnp.float32)
FORMS = ("Q8_0", "Q4_0", "Q4_1")
SIZES = {"N_V": 259, "l_max": 64, "L": 2, "H": 4, "H_kv": 2, "d_e": 64, "d_mlp": 96}
OTHER_SIZES = {"GPT2": {"H_kv": 4}, "GEMMA3": {"d_attn": 256, "d_mid": 256, "L": 6}}


def matrix(form, *rows, d_in, seed=0, dtype="float32") -> tuple[Any, np.ndarray]:
    """A matrix in blocks, and the numbers that the package gguf dequantizes from these."""
    W, kind = np.asarray(normal(*rows, d_in, seed=seed), np.float32), gguf.GGMLQuantizationType[form]
    stored = gguf.quants.quantize(W, kind)
    blocks = np.ascontiguousarray(stored).view(gguf_blocks.BLOCKS[form])
    return gguf_blocks._matrix(blocks, 0, np.dtype(dtype)), gguf.dequantize(stored, kind).astype(np.float64)


SHAPES = [
    ((5,), 64, ()),
    ((3, 7), 96, (2, 3)),
    ((1031,), 96, (1,)),
    ((509, 2), 160, ()),
    ((TILE // 96 + 101,), 96, (2,)),
]


@pytest.mark.parametrize(("rows", "d_in", "columns"), SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_a_product_is_that_of_the_dequantized_numbers(form, dtype, rows, d_in, columns, x32):
    W, exact = matrix(form, *rows, d_in=d_in, dtype=dtype)
    X = normal(d_in, *columns, seed=1).astype(dtype)
    assert (W.shape, W.dtype, W.ndim) == (exact.shape, np.dtype(dtype), exact.ndim)
    expected = np.tensordot(exact, np.asarray(X, np.float64), 1)
    near = {"rtol": 0, "atol": 2e-6 * np.abs(expected).max()}
    b = normal(*rows, seed=2).astype(dtype)

    @jax.jit
    def products(W, X, b):
        return W.times(X, jnp.float32), linear(W, X, b), logits(X, W) if len(rows) == 1 else None

    product, Y, scores = products(W, X, b)
    np.testing.assert_allclose(product, expected, **near)
    if len(rows) == 1:
        np.testing.assert_allclose(scores, expected, **near)
    assert Y.dtype == X.dtype
    expected = expected + np.asarray(b, np.float64).reshape(*rows, *(1 for _ in columns))
    near["atol"] = (2e-6 if dtype == "float32" else 2**-7) * np.abs(expected).max()
    np.testing.assert_allclose(np.asarray(Y, np.float32), expected, **near)


@pytest.mark.parametrize("form", FORMS)
def test_products_of_many_vectors_are_those_of_each(form, x32):
    for rows, d_in, columns in SHAPES[-2:]:
        W, exact = matrix(form, *rows, d_in=d_in)
        X = normal(3, d_in, *columns, seed=1)
        expected = np.stack([np.tensordot(exact, np.asarray(x, np.float64), 1) for x in X])
        np.testing.assert_allclose(jax.jit(jax.vmap(W.times))(X), expected, atol=2e-6 * np.abs(expected).max())


@pytest.mark.parametrize("form", FORMS)
def test_columns_of_a_table_are_looked_up(form, x32):
    W, exact = matrix(form, 37, d_in=96)
    table, v = QuantizedTable(W), jnp.array([[0, 36, 5], [-1, 37, 36]])
    assert (table.shape, len(table), table.dtype) == ((96, 37), 96, jnp.float32)
    found = np.asarray(jax.jit(lambda table, v: table.columns(v))(table, v))
    np.testing.assert_allclose(found[:, 0], exact.T[:, [0, 36, 5]], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found[:, 1, 2], exact[36], rtol=1e-6, atol=1e-6)
    assert np.isnan(found[:, 1, :2]).all()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [1, 2])
def test_a_matrix_is_never_widened_as_a_whole(form, columns, x32):
    """Neither by a product nor before a loop over several: two columns widen a tile of 1 MB."""
    W, _ = matrix(form, 20_011, d_in=96)
    X: Any = jnp.ones((96, columns), jnp.float32)
    steps = jax.jit(lambda W, X: jax.lax.fori_loop(0, 3, lambda _, X: W.times(X)[:96], X))
    assert temporary_bytes(steps, W, X) < 20_011 * 96 * 4 / 2


def written(path, name, form, tied=True, **sizes):
    """A file of a small model with random parameters."""
    variant = VARIANTS[name].but(unembedding=VARIANTS[name].unembedding.but(tied=tied))
    config = DTransformerConfig(**SIZES | OTHER_SIZES.get(name, {}) | sizes, variant=variant)
    theta = jax.tree.map(lambda a: a.astype(jnp.float32), init_d_transformer(jax.random.key(1), config))
    save_pretrained(path, theta, config, ByteTokenizer(), quantize=form)
    return path


def in_blocks(theta) -> dict[str, Any]:
    """The quantized matrices of the layers, by name."""
    leaves = jax.tree_util.tree_leaves_with_path(theta.layers, is_leaf=lambda W: isinstance(W, QuantizedMatrix))
    return {name_of(path): W for path, W in leaves if isinstance(W, QuantizedMatrix)}


MODELS = [("LLAMA", "Q8_0", True), ("LLAMA", "Q4_1", False), ("QWEN2", "Q4_0", True), ("GPT2", "Q8_0", True)]
MODELS += [("GPT2", "Q4_1", False), ("GEMMA3", "Q8_0", True), ("QWEN3", "Q4_0", False), ("MISTRAL", "Q4_1", True)]


@pytest.mark.end_to_end
@pytest.mark.parametrize(("name", "form", "tied"), cases.quick_of(MODELS[:2], MODELS))
def test_a_model_in_blocks_is_the_dequantized_one(name, form, tied, tmp_path, x32):
    path = written(tmp_path / "model.gguf", name, form, tied)
    assert GGUFFile(path).is_quantized
    exact, config, _ = load_pretrained(path)
    run = load_quantized(path)
    assert run.config == config
    assert isinstance(run.theta.W_e, QuantizedTable)
    assert run.theta.W_u is not None
    assert (run.theta.W_u is run.theta.W_e.T) == tied
    assert {*in_blocks(run.theta)} == {leaf for leaf in flatten(exact.layers) if "W_" in leaf}
    x = jnp.asarray(np.random.default_rng(1).integers(0, 256, (2, 23)))
    expected = d_logits(x, exact)
    np.testing.assert_allclose(d_logits(x, run.theta), expected, atol=2e-5 * np.abs(expected).max())
    lengths = np.array([23, 11])
    options = {"l_gen": 12, "tau": 0.0, "key": jax.random.key(0)}
    wanted = Generator(exact, config).generate(x, lengths=lengths, **options)
    of_blocks = Generator(run.theta, config)
    for r in range(2):
        found = of_blocks.generate(x[r : r + 1], lengths=lengths[r : r + 1], **options)
        np.testing.assert_array_equal(found[0], wanted[r])


def test_the_blocks_take_as_much_memory_as_in_the_file(tmp_path, x32):
    path = written(tmp_path / "model.gguf", "LLAMA", "Q8_0")
    stored = sum(info.rows * info.row_bytes for info in GGUFFile(path).tensors.values())
    arrays = {id(a): a for a in jax.tree.leaves(load_quantized(path).theta)}.values()
    assert sum(a.nbytes for a in arrays) == stored


def test_other_types_are_rounded_to_8_bits(tmp_path, x32):
    path = written(tmp_path / "model.gguf", "QWEN2", "Q5_1")
    found, kind = in_blocks(load_quantized(path).theta), gguf.GGMLQuantizationType.Q8_0
    for name, W in flatten(load_pretrained(path)[0].layers).items():
        if name in found:
            rounded = gguf.dequantize(gguf.quants.quantize(np.asarray(W, np.float32), kind), kind)
            values = np.asarray(jax.jit(jax.vmap(lambda W: W.values(W.arrays, W.dtype)))(found[name]))
            np.testing.assert_allclose(values.swapaxes(1, 2).reshape(W.shape), rounded.reshape(W.shape), rtol=1e-6)
    assert len(found) == 7


@pytest.mark.end_to_end
def test_a_file_of_several_types_keeps_what_it_can(tmp_path, x32, monkeypatch):
    """Q4_0, but for one layer's W_v, with which all of W_q, W_k and W_v are in 8 bits, and one's W_mlp2, in floats."""
    draft = gguf_writing.draft

    def mixed(*arguments):
        found = draft(*arguments)
        for name, form, n_bytes in (("attn_v", "Q8_0", 34), ("ffn_down", "F32", 128)):
            info = found.tensors[f"blk.1.{name}.weight"]
            new = info._replace(type=form, row_bytes=info.shape[-1] // 32 * n_bytes)
            found.tensors[f"blk.1.{name}.weight"] = new
        return found

    monkeypatch.setattr(gguf_writing, "draft", mixed)
    path = written(tmp_path / "model.gguf", "LLAMA", "Q4_0")
    (exact, config, _), run = load_pretrained(path), load_quantized(str(path))
    bits = {name: str(W.entries.dtype) for name, W in in_blocks(run.theta).items()}
    heads = {f"attention.heads.W_{a}": "int8" for a in "qkv"}
    assert bits == heads | {"attention.W_o": "uint8", "mlp.W_mlp1": "uint8", "mlp.W_gate": "uint8"}
    x = jnp.asarray(np.random.default_rng(1).integers(0, 256, 23))
    expected = d_logits(x, exact)
    assert np.linalg.norm(d_logits(x, run.theta) - expected) < 0.01 * np.linalg.norm(expected)
    Generator(run.theta, config).generate(x[None], lengths=np.array([23]), l_gen=3, key=jax.random.key(0))


@pytest.mark.end_to_end
def test_matrices_that_something_else_reads_are_dequantized(tmp_path, x32):
    path = written(tmp_path / "model.gguf", "MIXTRAL", "Q8_0")
    exact, run = load_pretrained(path)[0], load_quantized(path)
    assert {*in_blocks(run.theta)} == {"attention.W_o", *(f"attention.heads.W_{a}" for a in "qkv")}
    x = jnp.asarray(np.random.default_rng(1).integers(0, 256, 23))
    expected = d_logits(x, exact)
    np.testing.assert_allclose(d_logits(x, run.theta), expected, atol=2e-5 * np.abs(expected).max())


@pytest.mark.end_to_end
def test_commands_take_a_quantized_file_as_it_is(tmp_path, called, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = written(tmp_path / "model.gguf", "LLAMA", "Q4_1")
    convert(path, tmp_path / "run", dtype="float32")
    flags = ("--prompt", "abc", "--l_gen", "9", "--tau", "0", "--json")
    expected = json.loads(called("generate", tmp_path / "run", *flags)[1])["answers"][0]
    for more in ((), ("--weights", "int8")):
        status, out, error = called("generate", path, *flags, *more)
        assert (status, error) == (0, "")
        found = json.loads(out)["answers"][0]
        assert found["text"] == expected["text"]
        np.testing.assert_allclose(found["log_probabilities"], expected["log_probabilities"], atol=1e-4)
    assert not (tmp_path / "cache" / "formal-algorithms" / "models").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("in_blocks", [True, False])
def test_a_files_header_is_read_once(in_blocks, tmp_path, monkeypatch):
    path, opened, init = written(tmp_path / "model.gguf", "LLAMA", "Q8_0", True), [], GGUFFile.__init__
    monkeypatch.setattr(GGUFFile, "__init__", lambda self, path: opened.append(path) or init(self, path))
    if in_blocks:
        model_of(str(path), dtype=None, placement=None, lines=())
    else:
        as_run(path, cache_dir=tmp_path)
    assert opened == [path]
