"""Planted bugs of our own code are named from the numbers of the compiled functions, as in anybody's code."""

import importlib
import pathlib

import pytest

from algorithms.model.variants import VARIANTS
from tests.mutations.located import edited, named
from tests.mutations.planted import PLANTED
from training.crosscheck.variants import with_numbers_that_matter

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_numbers_matter_in_a_copy_of_the_package_too():
    """Its classes are others; with other numbers than the oracle's, each of its lines would differ."""
    with edited(PLANTED["keys not rotated"].edit, ROOT) as package:
        copied = importlib.import_module(f"{package.__name__}.model.variants").VARIANTS
        for name, variant in VARIANTS.items():
            assert repr(with_numbers_that_matter(copied[name])) == repr(with_numbers_that_matter(variant))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_named(name):
    assert "; ".join(named(PLANTED[name], ROOT, 0)) == PLANTED[name].says
