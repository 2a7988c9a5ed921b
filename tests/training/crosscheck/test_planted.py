"""Planted bugs of our own code are named from the numbers of the compiled functions, as in anybody's code."""

import importlib
import pathlib

import pytest

from algorithms.model.variants import VARIANTS
from training.crosscheck.mutations import edited, named
from training.crosscheck.planted import PLANTED
from training.crosscheck.variants import with_numbers_that_matter

ROOT = pathlib.Path(__file__).resolve().parents[3]
SAYS = {
    "bias of the query skipped": "Algorithm 4, line 1: the bias is not added",  # of Algorithm 3, token by token
    "1/√d dropped, one query": "Algorithm 4, line return: scores are not divided by √d_attn",
    "mask transposed": "Algorithm 4, line 5: the mask is transposed: a token attends to itself and what follows",
    "window off by one": "Algorithm 4, line 5: a token attends to the last 6 only",
    "heads in the wrong order": "Algorithm 5, line 3: heads are in reverse",
    "norm 4 for norm 5": "Algorithm 6, line return: it has the γ, β of the norm before",
    "keys not rotated": "Algorithm 4, line 2: only queries are rotated",
    "target off by one": "Algorithm 11, line 5: labels are not shifted: x[t] is predicted at t < ℓ (sum)",
    "uphill": "Algorithm 11, line 6: the gradient is -1 times that of the loss (uphill): of all parameters",
    "temperature inverted": "Algorithm 14, line 5: logits are multiplied by τ, not divided",
}


def test_numbers_matter_in_a_copy_of_the_package_too():
    """Its classes are others; with other numbers than the oracle's, each of its lines would differ."""
    with edited(PLANTED["keys not rotated"], ROOT) as package:
        copied = importlib.import_module(f"{package.__name__}.model.variants").VARIANTS
        for name, variant in VARIANTS.items():
            assert repr(with_numbers_that_matter(copied[name])) == repr(with_numbers_that_matter(variant))


@pytest.mark.slow
@pytest.mark.parametrize("name", SAYS)
def test_a_planted_bug_is_named(name):
    assert named(PLANTED[name], ROOT, 0) == [SAYS[name]]
