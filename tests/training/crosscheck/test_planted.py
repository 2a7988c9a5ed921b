"""Planted bugs of our own code are named from the numbers of the compiled functions, as in anybody's code."""

import importlib
import pathlib

import pytest

from algorithms.model.variants import VARIANTS
from tests.mutations.edits import Edit, Planted
from tests.mutations.located import edited, named
from tests.mutations.planted import PLANTED
from training.crosscheck.variants import with_numbers_that_matter

ROOT = pathlib.Path(__file__).resolve().parents[3]
# fmt: off
SAYS = {
    "token off by one": "1, line return: column x[t] − 1 of W_e is read",
    "position off by one": "2, line return: positions are one too high",
    "sine and cosine exchanged": "2, line return: positions are sinusoids t/10000^(2i/d), neighbours, cos before sin",
    "bias of the query skipped": "4, line 1: the bias is not added",
    "1/√d dropped, one query": "4, line return: scores are not divided by √d_attn",
    "bias of the values skipped": "4, line 3: the bias is not added",
    "scores not of keys": "4, line 4: scores are doubled",
    "mask of the other polarity": "4, line 5: the mask is inverted: a token attends to what follows only",
    "masked scores 0, not −∞": "4, line 5: masked scores are 0, not −∞",
    "1/√d dropped": "4, line return: scores are not divided by √d_attn",
    "attention weights ignored": "4, line return: the weights are ignored: the mean of V",
    "heads in the wrong order": "5, line 3: heads are in reverse",
    "bias of the output skipped": "5, line return: the bias is not added",
    "mean not subtracted": "6, line return: m is not subtracted",
    "ε misplaced": "6, line return: ε = 0.01 is added to √v, not to v",
    "variance unbiased": "6, line 2: the variance is divided by d_e − 1, not by d_e",
    "β skipped": "6, line return: there is no β",
    "layer norm over tokens": "6, line 1: m is over the tokens, not the features",
    "mean of RMSnorm": "6, line return: the mean of the whole array is subtracted, not m",
    "RMSnorm's ε misplaced": "6, line return: ε = 0.01 is added to √v, not to v",
    "square of the deviation from the mean for RMSnorm": "6, line 2: squares are of e − m, not of e",
    "logits not of W_u": "10, line return: the matrix has the other sign",
    "encoder unidirectional": "4, line 5: the mask is causal where the paper has none",
    "decoder bidirectional": "4, line 5: there is no mask: every token attends to every other",
    "cross weights shared": "4, line 1: cross-attention has the parameters of self-attention",
    "cross-attention of X": "4, line 2: keys and values are of X, not of the context",
    "norm 4 for norm 5": "6, line return: it has the γ, β of the norm before",
    "context embedded as the sequence": "2, line return: the context is embedded with the sequence's parameters",
    "final norm of the encoder dropped": "6, line return: there is no norm here",
    "no residual": "9, line 7: there is no residual",
    "residual of the normalized X": "10, line 6: the residual is the normalized X̃, not X",
    "MLP of the residual stream": "10, line 8: it reads X, not the normalized X̃",
    "no final norm": "6, line return: there is no norm here",
    "first layer twice": "10, line 6: every layer has the first layer's parameters",
    "target off by one": "11, line 5: labels are not shifted: x[t] is predicted at t < ℓ (sum)",
    "uphill": "11, line 6: the gradient is -1 times that of the loss (uphill): of all parameters",
    "the length of another context": "11, line 4: the padding of the context is attended to",
    "what is masked and what is not": "12, line 5: the tokens that are not drawn are masked",
    "the same masks for all sequences": "12, line 5: other tokens are masked than the draws say: number 2, 5",
    "the same masks in all epochs": "12, line 5: other tokens are masked than the draws say: number 2, 5",
    "target already masked": "12, line 9: the mask token itself is predicted, in place of the token that it hides (sum)",
    "padding in the loss": "13, line 5: labels are rolled: the last token predicts the first (sum)",
    "column off by one": "14, line 5: the column before the last is read",
    "temperature inverted": "14, line 5: logits are multiplied by τ, not divided",
    "one key for all tokens": "14, line 5: the likeliest token is taken, or one draw is used for all tokens",
    "greedy ignored": "14, line 5: τ is not used",
    "τ = ∞ not uniform": "14, line 5: τ is not used",
    "prompt in the result": "14, line return: the last token of the prompt is returned, too",
    "no bos_token": "15, line 1: it begins with token [0], not with bos_token",
    "stops early": "15, line 3: eos_token is written after 15 tokens, without being drawn",
    "column of the step before": "15, line 6: the column before the last is read",
    "one key for all draws": "15, line 6: one draw is used for all tokens",
    "token written too late": "15, line 6: a token is written one position too late, and none there",
    "layers reversed": "8, line 5: the layers are in reverse",
    "bias of W_f skipped": "9, line 10: the bias is not added",
    "learned positions added to rotary ones": "10, line 2: 0.1 is added to it",
    "activation of the algorithm for the variant's": "10, line 8: the activation is the exact GELU",
    "norm of the embeddings dropped": "6, line return: there is no norm here",
    "bias of the projected embeddings dropped": "9, line 2: the bias is not added",
    "mask transposed": "4, line 5: the mask is transposed: a token attends to itself and what follows",
    "mask without the token itself": "4, line 5: the mask is strict: a token does not attend to itself (⟦t_z < t_x⟧)",
    "keys not rotated": "4, line 2: only queries are rotated",
    "window off by one": "4, line 5: a token attends to the last 6 only",
    "cap of the scores dropped": "4, line 5: scores are not capped",
    "scale dropped": "4, line return: scores are divided by √d_attn",
    "norms of queries and keys dropped": "4, line 1: queries and keys are not normalized",
    "norm of what attention adds dropped": "6, line return: there is no norm here",
    "u left out": "4, line 4: scores have Transformer-XL's distances (no u)",
    "distances reversed": "4, line 5: scores have Transformer-XL's distances (reversed)",
    "u in place of v": "4, line 5: scores have Transformer-XL's distances (u for v)",
    "scores that grow with the distance": "4, line 5: scores have ALiBi's slopes (reversed)",
    "a bucket begins one distance later": "4, line 5: scores have a bias for each distance (one later)",
    "positions from 1": "2, line return: positions are one too high",
    "embedding not scaled": "8, line 2: embeddings are not scaled",
    "factor of embeddings dropped": "10, line 2: embeddings are not scaled",
    "first position dropped": "2, line return: positions count t",
    "shared expert not gated": "10, line 8: the shared expert is not gated",
    "weights of experts not renormalized": "10, line 8: a token's 2 experts are those with the largest scores, weights are the softmax of the scores, not divided by their sum",
    "new rows not scaled by √(1 − α²)": "10, line 6: new rows are not scaled by √(1 − α²)",
    "queries of the delta rule not scaled": "10, line 6: queries are not divided by √d",
    "padding of the sequence attended": "4, line 5: padding is attended to",
    "padding masked": "12, line 7: padding that is masked is predicted, too",
    "weights of the loss ignored": "11, line 5: labels are rolled: the last token predicts the first (sum)",
    "gate and MLP exchanged": "10, line 8: gate and MLP are exchanged",
    "norm of what the MLP adds dropped": "6, line return: there is no norm here",
    "γ for γ + 1": "6, line return: γ is used",
    "a norm of each head for one of all": "4, line 1: queries and keys are normalized head by head, not all heads together",
    "frequencies of the next pair": "4, line 1: queries and keys are rotated, pairs: halves, base 20, exponent 2(i+1)/d",
    "sines and cosines of a rotation exchanged": "4, line 1: queries and keys are rotated, pairs: halves, base 20, exponent 2i/d, sin for cos",
    "all rows rotated": "4, line 1: all rows are rotated",
    "tied although W_u is given": "8, line return: W_u is W_eᵀ (tied)",
    "output bias skipped": "9, line return: the bias is not added",
    "cap of the logits dropped": "10, line return: logits are not capped",
    "tied unembedding not scaled": "8, line return: logits are not scaled",
    "factor of the logits dropped": "10, line return: logits are not scaled",
    "turns counted from 1": "4, line 1: each layer has the attention of the next turn",
    "mask_token is another": "12, line 5: masked tokens are replaced by token 15, not mask_token",
    "eos_token is another": "15, line 3: it ends at token 16, not at eos_token",
    "GELU approximated": "9, line 7: GELU is its tanh approximation",
    "ReLU for GELU": "9, line 7: the activation is ReLU",
    "ReLU for its square": "10, line 8: the activation is ReLU",
    "GELU for ReLU": "8, line 7: the activation is the exact GELU",
    "heads share keys by h mod H_kv": "4, line 4: head h reads keys h mod H_kv",
    "softmax Jacobian without aᵀg": "4, line return: its derivative is as if the sum below the fraction is constant",
    "rotated backwards": "4, line 1: queries and keys are rotated, pairs: halves, base 20, exponent 2i/d, backwards",
    "halves for neighbors": "4, line 1: queries and keys are rotated, pairs: neighbours, base 20, exponent 2i/d",
    "columns of −∞ are 0/0": "4, line return: it is NaN where a token has nothing to attend to: a softmax of −∞ alone is 0/0; what follows cannot be checked",
    "softmax over the wrong axis": "4, line return: numerators are divided by their sum over the queries t_x; Algorithm 10, line return: numerators are divided by their sum over the tokens t, not over the vocabulary",
    "attention added twice where it is side by side": "10, line 8: attention is added twice",
    "one after the other for side by side": "10, line 8: X is added twice",
    "the residual stream for the one norm": "10, line 8: it reads X, not the normalized X̃",
}
"""What is wrong → what is told, behind the word Algorithm: number, line, formula."""
# fmt: on


def test_numbers_matter_in_a_copy_of_the_package_too():
    """Its classes are others; with other numbers than the oracle's, each of its lines would differ."""
    with edited(PLANTED["keys not rotated"].edit, ROOT) as package:
        copied = importlib.import_module(f"{package.__name__}.model.variants").VARIANTS
        for name, variant in VARIANTS.items():
            assert repr(with_numbers_that_matter(copied[name])) == repr(with_numbers_that_matter(variant))


def test_every_planted_bug_has_a_sentence():
    assert sorted(SAYS) == sorted(PLANTED)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", SAYS)
def test_a_planted_bug_is_named(name):
    assert "; ".join(named(PLANTED[name], ROOT, 0)) == f"Algorithm {SAYS[name]}"


@pytest.mark.thorough
def test_what_is_inside_mamba_is_named():
    edit = Edit("algorithms/model/mamba.py", "Mamba2.output", "Y", "D * V.astype(O.dtype)", "0 * D * V.astype(O.dtype)")
    told = named(Planted(edit, 10, "6", "GRANITE_HYBRID"), ROOT, 0)
    assert told == ["Algorithm 10, line 6: D times the values is left out"]
