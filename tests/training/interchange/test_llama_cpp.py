"""GGUF files that are written here, in llama.cpp: every architecture opens and computes our logits, or is refused.

It needs llama-cpp-python, which compiles llama.cpp for a quarter of an hour: pip install llama-cpp-python.
"""

import json
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import VARIANTS, DTransformerConfig, d_logits, init_d_transformer
from algorithms.lines import MLP, Attention, Experts, KimiDelta, RMSNorm, Rotary
from tests.training.interchange.test_gguf_tokenizer import bpe, of_bytes, of_pieces, trained  # noqa: F401
from tests.training.interchange.test_gguf_tokenizer import read as of_tokens
from training.data.tokenizers import ByteTokenizer
from training.interchange import InterchangeError, load_pretrained, save_pretrained

pytestmark = pytest.mark.slow
SIZES = {"N_V": 259, "l_max": 64, "L": 4, "H": 4, "H_kv": 2, "d_e": 64, "d_mlp": 96}
OTHER_SIZES = {
    **{name: {"H_kv": 4} for name in ("GPT2", "DEEPSEEK", "OLMOE", "KIMI_LINEAR")},
    "LLAMA4": {"L": 8},
    "GEMMA2": {"d_attn": 256, "d_mid": 256},
    "GEMMA3": {"d_attn": 256, "d_mid": 256, "L": 6},
}
NAMES = ("GPT2", "LLAMA", "MISTRAL", "MIXTRAL", "QWEN2", "QWEN3", "QWEN3_MOE", "SMOLLM3", "OLMO2", "OLMOE", "GPT_OSS")
NAMES += ("GLM4", "OLMO3", "COHERE2", "MINIMAX_M2", "DEEPSEEK", "GEMMA", "GEMMA2", "GEMMA3")
NAMES += ("LLAMA4", "LLAMA4_SCOUT", "GRANITE", "GRANITE_MOE", "GRANITE_MOE_SHARED")
HYBRIDS = ("QWEN3_NEXT", "QWEN3_5", "GRANITE_HYBRID", "GRANITE_HYBRID_MOE", "KIMI_LINEAR")
NAMES += HYBRIDS
REFUSED = {("COHERE2", False), ("GEMMA", False), ("GEMMA2", False), ("GEMMA3", False)}
APART = dict.fromkeys(("GPT2", "GEMMA", "GEMMA2", "GEMMA3"), 4e-3)  # llama.cpp's GELU is a table in float16
APART |= dict.fromkeys(HYBRIDS, 3e-4)  # it adds nothing to the squares of the lengths of keys
OPEN = """
import json, sys, llama_cpp
path, text, *tokens = sys.argv[1:]
kept = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32, "flash_attn": False}
model = llama_cpp.Llama(path, n_ctx=64, n_threads=1, logits_all=True, verbose=False, **kept)
encoded = model.tokenize(text.encode(), add_bos=False, special=False) if text else []
model.eval([int(token) for token in tokens])
print(json.dumps([encoded, model.scores[: len(tokens)].tolist()]))
"""


def in_llama_cpp(path, x, text=""):
    """The tokens of a text, and the logits after each token of x: [N_V, l]."""
    pytest.importorskip("llama_cpp", reason="pip install llama-cpp-python (compiles for a quarter of an hour)")
    command = [sys.executable, "-c", OPEN, path, text, *map(str, x)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    tokens, logits = json.loads(done.stdout.splitlines()[-1])
    return tokens, np.array(logits).T


def variant_of(name):
    """GPT_OSS without YaRN, which llama.cpp rounds."""
    if name == "SMOLLM3":
        line = VARIANTS["LLAMA"].attentions[0]
        return VARIANTS["LLAMA"].but(attention=(line, line, line, line.but(positions=None)))
    if name.startswith("LLAMA4"):
        return of_llama4(scout=name == "LLAMA4_SCOUT")
    variant = of_granite_moe(name) if "GRANITE" in name and "_MOE" in name else VARIANTS[name]
    if name in HYBRIDS:
        return of_few_rows(variant)
    if name != "GPT_OSS":
        return variant
    return variant.but(attention=tuple(line.but(positions=Rotary(base=150_000.0)) for line in variant.attentions))


def of_granite_moe(name):
    """Granite with experts, and an MLP that every token takes; the hybrid also with rotary positions."""
    mlp = Experts(n=8, k=3, activation="silu", gated=True, biases=False, shared=0 if name == "GRANITE_MOE" else 2)
    variant, rotary = VARIANTS[name.partition("_MOE")[0]], Rotary(base=500.0)
    lines = (a.but(positions=rotary) if isinstance(a, Attention) else a for a in variant.attentions)
    return variant.but(mlp=mlp, attention=tuple(lines))


def of_llama4(*, scout):
    """Llama 4 with MLPs of their own width, or Scout: llama.cpp normalizes queries and keys unless n = 128."""
    variant, experts = VARIANTS["LLAMA4"], VARIANTS["LLAMA4"].mlps[1]
    if not scout:
        return variant.but(mlp=(variant.mlps[0].but(d_mlp=128), experts))
    chunks, full = variant.attentions[0].but(normalize_heads=RMSNorm(epsilon=1e-5, gamma=False)), variant.attentions[3]
    return variant.but(attention=(chunks, chunks, chunks, full), mlp=experts.but(n=8))


def of_few_rows(variant):
    """A hybrid of small recurrences; in Kimi Linear, the first layer has no experts, as it is published."""
    rows = {
        "GatedDelta": {"n": 4, "n_keys": 2, "d_key": 16, "d_value": 16},
        "Mamba2": {"n": 4, "n_keys": 2, "d_key": 16, "d_value": 32},
        "KimiDelta": {"n": 4, "n_keys": 4, "d_key": 16, "d_value": 16, "rank": 16},
        "Latent": {"d_c": 32, "d_r": 16},
    }
    kinds = list(dict.fromkeys(variant.attentions))
    attention = tuple(line.but(**rows.get(type(line).__name__, {})) for line in (kinds[0], *kinds))
    if not isinstance(variant.mlp, Experts):
        return variant.but(attention=attention)
    mlp = MLP(activation="silu", gated=True, biases=False, d_mlp=128)
    first = (mlp,) if isinstance(kinds[0], KimiDelta) else ()
    return variant.but(attention=attention, mlp=variant.mlp.but(n=8, k=3), first=first)


def made(name, tied=True, **sizes):
    """A small model with random parameters."""
    variant = variant_of(name)
    variant = variant.but(unembedding=variant.unembedding.but(tied=tied))
    config = DTransformerConfig(**SIZES | OTHER_SIZES.get(name, {}) | sizes, variant=variant)
    theta = init_d_transformer(jax.random.key(1), config)
    rng = np.random.default_rng(0)
    return jax.tree.map(lambda a: (a + 0.05 * rng.normal(size=a.shape)).astype(np.float32), theta), config


def logits(x, theta):
    return np.asarray(d_logits(jnp.asarray(x), theta))


X = np.random.default_rng(1).integers(0, 256, 40)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_opens_with_the_same_logits_or_is_refused(name, tied, tmp_path, x32):
    theta, config = made(name, tied)
    path = tmp_path / "model.gguf"
    if (name, tied) in REFUSED:
        with pytest.raises(
            InterchangeError, match=r"written: (?:cohere2|gemma\w*) has no W_u in llama.cpp, which takes W_eᵀ$"
        ):
            save_pretrained(path, theta, config, ByteTokenizer())
        return
    save_pretrained(path, theta, config, ByteTokenizer())
    opened, _, _ = load_pretrained(path)
    assert (opened.W_u is None) == tied
    rounded = 5e-5 if name in HYBRIDS else 0  # the file has −e^a in place of a
    np.testing.assert_allclose(logits(X, opened), logits(X, theta), atol=rounded, rtol=0)
    tokens, found = in_llama_cpp(path, X, "aé b")
    assert tokens == list("aé b".encode())
    np.testing.assert_allclose(found, logits(X, theta), atol=APART.get(name, 2e-5))


@pytest.mark.parametrize("quantize", ["Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0"])
def test_quantized_matrices_open(quantize, tmp_path, x32):
    """With the logits of the numbers that the file holds, but for activations, which llama.cpp rounds to 8 bits."""
    theta, config = made("LLAMA")
    save_pretrained(tmp_path / "model.gguf", theta, config, ByteTokenizer(), quantize=quantize)
    rounded, _, _ = load_pretrained(tmp_path / "model.gguf")
    expected = logits(X, rounded)
    _, found = in_llama_cpp(tmp_path / "model.gguf", X)
    assert np.linalg.norm(found - expected) < 0.05 * np.linalg.norm(expected)


def test_every_kind_of_tokenizer_opens(bpe, tmp_path, x32):  # noqa: F811
    theta, config = made("LLAMA", N_V=1600)
    pieces = of_tokens(of_pieces(trained(tmp_path)) | {"ggml.add_space_prefix": False}, N_V=1600)
    for i, tokenizer in enumerate((of_tokens(of_bytes(bpe), N_V=1600), pieces, None)):
        save_pretrained(tmp_path / f"{i}.gguf", theta, config, tokenizer)
        text = "the cat sat; 12 dogs" if tokenizer else ""
        tokens, found = in_llama_cpp(tmp_path / f"{i}.gguf", X, text)
        assert tokens == (tokenizer.encode(text) if tokenizer else [])
        np.testing.assert_allclose(found, logits(X, theta), atol=2e-5)
