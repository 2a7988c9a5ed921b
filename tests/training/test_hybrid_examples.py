"""The documents' hybrid and the benchmark's are one, and as large as the attention beside it."""

import json
import pathlib

import jax
import pytest

from algorithms import DTransformerConfig, init_d_transformer
from training.benchmarks import hybrid
from training.tasks.own_lines import variant_from_json

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "docs" / "examples"


@pytest.mark.parametrize("name", hybrid.MODELS)
def test_the_example_is_what_the_benchmark_measures(name):
    given = json.loads((EXAMPLES / f"{name}.json").read_text())
    measured = hybrid.MODELS[name]
    assert {key: given[key] for key in hybrid.SIZES} == hybrid.SIZES
    assert (given["d_mlp"], variant_from_json(given["variant"])) == (measured["d_mlp"], measured["variant"])


def test_both_have_as_many_parameters():
    sizes = []
    for measured in hybrid.MODELS.values():
        config = DTransformerConfig(**hybrid.SIZES, **measured, l_max=8)
        theta = jax.eval_shape(lambda key, config=config: init_d_transformer(key, config), jax.random.key(0))
        sizes.append(sum(leaf.size for leaf in jax.tree.leaves(theta)))
    assert abs(sizes[0] / sizes[1] - 1) < 0.001
