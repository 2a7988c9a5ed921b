"""The oracle's changed lines against formulas of the documents, and against the oracle of the paper's own lines."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from algorithms import PAPER, DTransformerConfig, lines
from algorithms.lines import Attention, Embedding, LayerNorm, RMSNorm, Rotary, TransformerXL, Unembedding
from tests.cases import random_theta
from training import oracle
from training.crosscheck.models import family_parameters
from training.oracle import family
from training.oracle.lines import join_masks
from training.oracle.parameters import rebuild
from training.oracle.positions import alibi_slopes, t5_bucket
from training.oracle.transformers import causal_mask, ones_mask


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.end_to_end
@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(32, 128), (10, 17), (12, 20), (8, 64)])
def test_t5s_buckets_also_in_float32(bidirectional, num_buckets, max_distance):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    modeling_t5 = pytest.importorskip("transformers.models.t5.modeling_t5", reason="transformers is not installed")
    distances = range(-300, 301)
    expected = modeling_t5.T5Attention._relative_position_bucket(
        torch.tensor(list(distances)), bidirectional, num_buckets, max_distance
    )
    assert [t5_bucket(d, bidirectional, num_buckets, max_distance) for d in distances] == expected.tolist()


def test_alibis_slopes():
    """The slopes in section 3 of the publication, and its code's for heads that are not a power of two."""
    assert alibi_slopes(8) == [1 / 2**h for h in range(1, 9)]
    assert alibi_slopes(16) == [2 ** (-h / 2) for h in range(1, 17)]
    assert alibi_slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]


def test_a_window_and_documents_by_hand():
    t, f = True, False
    banded = [[t, t, f, f], [f, t, t, f], [f, f, t, t], [f, f, f, t]]
    assert join_masks(causal_mask(4), window=2).tolist() == banded
    both_sides = [[t, t, f, f], [t, t, t, f], [f, t, t, t], [f, f, t, t]]
    assert join_masks(ones_mask(4, 4), window=2).tolist() == both_sides
    documents = [[t, f, f, f], [f, t, t, f], [f, f, t, t], [f, f, f, f]]
    assert join_masks(causal_mask(4), 2, 3, [0, 1, 1, 1], [0, 1, 1, 1]).tolist() == documents
    chunks = [[t, f, f, f], [f, t, t, f], [f, f, t, f], [f, f, f, t]]
    assert join_masks(causal_mask(4), 2, positions=[1, 2, 3, 4]).tolist() == chunks


def random(shapes: dict) -> Any:
    """A tree of random arrays in place of a tree of their shapes."""
    rng = np.random.default_rng(11)

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return SimpleNamespace(**{name: fill(child) for name, child in node.items()})
        if isinstance(node, list):
            return [fill(child) for child in node]
        return rng.normal(size=node)

    return fill(shapes)


D_E, D_MLP = 4, 7
ATTENTION = {
    "heads": [{f"{kind}_{part}": (3, D_E) if kind == "W" else (3,) for part in "qkv" for kind in "Wb"}] * 2,
    "W_o": (D_E, 6),
    "b_o": (D_E,),
}
NORM = {"gamma": (D_E,), "beta": (D_E,)}
MLP = {"W_mlp1": (D_MLP, D_E), "b_mlp1": (D_MLP,), "W_mlp2": (D_E, D_MLP), "b_mlp2": (D_E,)}
LAYER = {"attention": ATTENTION, "norm1": NORM, "mlp": MLP, "norm2": NORM}
DECODER_LAYER = {
    "self_attention": ATTENTION, "norm3": NORM, "cross_attention": ATTENTION, "norm4": NORM, "mlp": MLP, "norm5": NORM
}  # fmt: skip
X = [9, 3, 1, 4, 10]
EMBEDDINGS = {"W_e": (D_E, 11), "W_p": (D_E, 9), "W_u": (11, D_E)}


def test_without_changed_lines_it_is_the_papers():
    x, z = [9, 3, 1, 4, 10], [2, 7, 1, 8, 2, 8, 0]
    theta = random({**EMBEDDINGS, "layers": [LAYER] * 2, "norm": NORM})
    close(family.d_transformer(x, theta, PAPER), oracle.d_transformer(x, theta))
    theta = random({**EMBEDDINGS, "layers": [LAYER] * 2, "W_f": (D_E, D_E), "b_f": (D_E,), "norm": NORM})
    close(family.e_transformer(x, theta, PAPER), oracle.e_transformer(x, theta))
    theta = random({**EMBEDDINGS, "encoder": [LAYER] * 2, "decoder": [DECODER_LAYER] * 3})
    close(family.ed_transformer(z, x, theta, PAPER), oracle.ed_transformer(z, x, theta))


def layer_norm_of_columns(Y, norm):
    centered = Y - Y.mean(axis=0)
    return centered / centered.std(axis=0) * norm.gamma[:, None] + norm.beta[:, None]


def unscaled_attention(X, Z, W, scale):
    """All heads at once, without biases, causal; X is what queries and keys read."""
    heads = []
    for head in W.heads:
        S = np.where(np.tri(X.shape[1]).T, (head.W_k @ X).T @ (head.W_q @ X) * scale, -np.inf)
        heads.append(head.W_v @ Z @ (np.exp(S) / np.exp(S).sum(axis=0)))
    return W.W_o @ np.concatenate(heads)


WITHOUT_BIASES = {"heads": [{f"W_{part}": (3, D_E) for part in "qkv"}] * 2, "W_o": (D_E, 6)}


def test_document_000s_block():
    """X + LN(Z), then + FFN of it: no biases, ReLU, and 1 for 1/sqrt(d_attn)."""
    mlp = {"W_mlp1": (D_MLP, D_E), "W_mlp2": (D_E, D_MLP)}
    block = {"attention": {**WITHOUT_BIASES, "norm_out": NORM}, "mlp": mlp}
    theta = random({**EMBEDDINGS, "layers": [block] * 2})
    Y = theta.W_e[:, X] + theta.W_p[:, :5]
    for W in theta.layers:
        Y = Y + layer_norm_of_columns(unscaled_attention(Y, Y, W.attention, 1.0), W.attention.norm_out)
        Y = Y + W.mlp.W_mlp2 @ np.maximum(W.mlp.W_mlp1 @ Y, 0)
    variant = PAPER.but(attention=Attention(scale=1.0, normalize_output=LayerNorm()), mlp=lines.MLP(activation="relu"))
    close(family.d_logits(X, theta, variant), theta.W_u @ Y)


def test_document_003s_decoder():
    """Norms after the sums, no norm at the end, sinusoids of neighbors from position 0, and an output bias."""
    layers = [{**LAYER, "attention": WITHOUT_BIASES}] * 2
    theta = random({"W_e": (D_E, 11), "W_u": (11, D_E), "b_u": (11,), "layers": layers})
    angles = np.outer(np.repeat([1.0, 0.01], 2), np.arange(5))
    Y = theta.W_e[:, X] + np.where((np.arange(D_E) % 2 == 0)[:, None], np.sin(angles), np.cos(angles))
    for W in theta.layers:
        Y = layer_norm_of_columns(Y + unscaled_attention(Y, Y, W.attention, 3**-0.5), W.norm1)
        inner = np.maximum(W.mlp.W_mlp1 @ Y + W.mlp.b_mlp1[:, None], 0)
        Y = layer_norm_of_columns(Y + W.mlp.W_mlp2 @ inner + W.mlp.b_mlp2[:, None], W.norm2)
    embedding, mlp = Embedding(positions="sinusoidal"), lines.MLP(activation="relu")
    variant = PAPER.but(embedding=embedding, order="norm_last", mlp=mlp)
    close(family.d_logits(X, theta, variant), theta.W_u @ Y + theta.b_u[:, None])


def test_it_is_analytic():
    """A complex step in every parameter gives the central difference: what gradients are compared with."""
    norms = {"normalize_heads": RMSNorm(offset=1.0), "normalize_output": RMSNorm(offset=1.0)}
    attentions = (
        Attention(positions=TransformerXL(), cap=0.5, **norms),
        Attention(positions=Rotary(share=0.5), window=2, **norms),
    )
    variant = PAPER.but(
        embedding=Embedding(positions=None),
        norm=RMSNorm(offset=1.0),
        attention=attentions,
        mlp=lines.MLP(activation="silu", gated=True, biases=False),
        unembedding=Unembedding(cap=0.7),
    )
    sizes = {"N_V": 11, "l_max": 4, "L": 2, "H": 2, "H_kv": 1, "d_e": 4, "d_mlp": 7, "d_attn": 4, "d_mid": 3}
    theta = family_parameters(random_theta(DTransformerConfig(**sizes, variant=variant, tied=True)))
    x = [9, 3, 1, 10]

    def loss(theta):
        P = family.d_transformer(x, theta, variant)
        return -sum(np.log(P[x[t + 1], t]) for t in range(len(x) - 1))

    gradient = oracle.flatten(oracle.complex_step_gradient(loss, theta))
    arrays, rng, step = oracle.flatten(theta), np.random.default_rng(2), 1e-7
    assert gradient.keys() == arrays.keys()
    for name in sorted({path.rsplit(".", 1)[-1] for path in arrays}):
        direction = {path: rng.normal(size=W.shape) * (path.rsplit(".", 1)[-1] == name) for path, W in arrays.items()}
        ends = [rebuild(theta, {path: W + s * direction[path] for path, W in arrays.items()}) for s in (step, -step)]
        along = sum(np.sum(gradient[path] * direction[path]) for path in arrays)
        difference = (loss(ends[0]) - loss(ends[1])) / (2 * step)
        np.testing.assert_allclose(difference, along, rtol=1e-6, atol=1e-7, err_msg=name)
