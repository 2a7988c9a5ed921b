"""Looking inside imported models of every variant that transformers has, against its hidden states and attentions."""

import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_transformer, e_transformer, ed_transformer
from algorithms.inside import record
from tests import cases, interchange_cases
from tests.training.interchange import test_decoders, test_encoder_decoder, test_encoders
from training.interchange import load_pretrained

torch, transformers = interchange_cases.libraries()
QUICK = ("gpt2", "llama", "BertForMaskedLM", "bart")
DECODERS = {n: lambda n=n: test_decoders.make(n) for n in test_decoders.MODELS}
ENCODERS = {n: lambda n=n: test_encoders.make(n) for n in test_encoders.MODELS if n.endswith("ForMaskedLM")}
ENCODER_DECODERS = {n: lambda n=n: test_encoder_decoder.make(n) for n in test_encoder_decoder.MODELS}
HIDDEN, ATTENTION = (1, 2, 0), (2, 0, 3, 1)
"""Our axes in the order of transformers', of one layer."""


def each(makers):
    marks = {name: () if name in QUICK else pytest.mark.slow for name in makers}
    return pytest.mark.parametrize("make", [pytest.param(m, id=n, marks=marks[n]) for n, m in makers.items()])


def both(make, folder, f, names, **tokens):
    """What is recorded of the imported model, and what transformers shows of its own."""
    make()
    with interchange_cases.in_float64(torch):
        model = make()
        model.set_attn_implementation("eager")
    theta, _, _ = load_pretrained(interchange_cases.saved(model, folder))
    with torch.no_grad(), interchange_cases.in_float64(torch):
        theirs = {name: torch.tensor(x) for name, x in tokens.items()}
        out = model(**theirs, output_hidden_states=True, output_attentions=True, use_cache=False)
    return record(f, *names)(*map(jnp.asarray, tokens.values()), theta)[1], out, model.config


def assert_same(seen, theirs, axes, what, rtol=1e-9):
    assert len(seen) == len(theirs)
    for l, (ours, other) in enumerate(zip(seen, theirs, strict=True)):
        cases.assert_close(np.transpose(ours, axes), other, rtol, f"{what}, {l}")


@each(DECODERS)
def test_decoders_show_what_transformers_shows(make, tmp_path, request):
    x = np.random.default_rng(0).integers(3, 13, (2, 10))
    seen, out, config = both(make, tmp_path, d_transformer, ("X@3", "X@8", "X_tilde@5", "X@10", "A"), input_ids=x)
    norm_last = np.array_equal(seen["X@3"], seen["X_tilde@5"][0])  # it follows X@8, and line 5 is the identity
    layers = seen["X_tilde@5"][1:] if norm_last else seen["X@8"][:-1]
    rtol = 1e-5 if "[lfm2_moe]" in request.node.name else 1e-9  # it adds 1e-6 to the sum of experts' weights
    kinds = getattr(config, "layers_block_type", "-" * (len(layers) + 1))  # Nemotron's MLPs are layers of their own
    ends = [l for l in range(1, len(kinds)) if kinds[l] not in ("mlp", "moe")]
    theirs = [out.hidden_states[l] for l in (0, *ends, -1)]
    assert_same([seen["X@3"], *layers, seen["X@10"]], theirs, HIDDEN, "X", rtol)
    assert_same(seen["A"], out.attentions, ATTENTION, "A", rtol)


@each(ENCODERS)
def test_encoders_show_what_transformers_shows(make, tmp_path):
    x = np.random.default_rng(0).integers(3, 29, (2, 9))
    seen, out, _ = both(make, tmp_path, e_transformer, ("X@3", "X@8", "X@9", "A"), input_ids=x)
    assert_same([seen["X@3"], *seen["X@8"][:-1], seen["X@9"]], out.hidden_states, HIDDEN, "X")
    assert_same(seen["A"], out.attentions, ATTENTION, "A")


@each(ENCODER_DECODERS)
def test_encoder_decoders_show_what_transformers_shows(make, tmp_path):
    z, x = (np.random.default_rng(0).integers(3, 22, (2, l)) for l in (7, 5))
    names = ("Z@3", "Z@8", "Z@9", "X@12", "X@19", "X@20", "A/5", "A/14", "A/16")
    seen, out, _ = both(make, tmp_path, ed_transformer, names, input_ids=z, decoder_input_ids=x)
    assert_same([seen["Z@3"], *seen["Z@8"][:-1], seen["Z@9"]], out.encoder_hidden_states, HIDDEN, "Z")
    assert_same([seen["X@12"], *seen["X@19"][:-1], seen["X@20"]], out.decoder_hidden_states, HIDDEN, "X")
    for line, theirs in (("5", out.encoder_attentions), ("14", out.decoder_attentions), ("16", out.cross_attentions)):
        assert_same(seen[f"A/{line}"], theirs, ATTENTION, f"A/{line}")
