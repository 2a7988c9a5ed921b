"""The printed lines are the lines that run: a change of any statement of Algorithms 1 to 10 changes a transformer."""

import ast
import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms import alg08_ed_transformer, alg10_d_transformer
from algorithms.machinery.contract import plain
from algorithms.machinery.tags import tags_in, tags_of, target_of
from tests import cases

X, Z = cases.random_tokens(2, 13), cases.random_tokens(2, 7, seed=1)
PARTS = alg.token_embedding, alg.positional_embedding, alg.attention, alg.mh_attention, alg.layer_norm, alg.unembedding
# name → the transformer, its arguments, and the functions whose statements it runs
TRANSFORMERS = {
    "d": (alg.d_transformer, (X, cases.D), (*PARTS, alg.d_transformer, alg10_d_transformer.d_lines)),
    "e": (alg.e_transformer, (X, cases.E), (alg.e_transformer, alg.e_encoding, alg.e_hidden_state)),
    "ed": (
        alg.ed_transformer,
        (Z, X, cases.ED),
        (alg.ed_transformer, alg.ed_encoding, alg08_ed_transformer.ed_decoder_lines),
    ),
}


@functools.cache
def theta_of(config):
    return cases.random_theta(config)


def probabilities(name, implementation):
    function, (*tokens, config), _ = TRANSFORMERS[name]
    theta = theta_of(config)
    return np.asarray(jax.jit(lambda theta: plain(function)(*tokens, theta, implementation=implementation))(theta))


unchanged = functools.cache(probabilities)


def bent(value):
    """A value a hundredth larger, each row by another share of that; scores that wait, all alike."""
    if not isinstance(value, jax.Array):
        return 1.01 * value
    share = (1 + jnp.arange(len(value), dtype=value.dtype)) / len(value)
    return value * (1 + 0.01 * share.reshape(-1, *(1,) * (value.ndim - 1)))


def tagged(node, tags):
    """The tagged statements in a function, each with the list that it is in."""
    for statement in list(node.body):
        if tags_of(statement, tags) is not None:
            yield node.body, statement
        if isinstance(statement, ast.FunctionDef):
            yield from tagged(statement, tags)


def parsed(function):
    """The tree of a function without its decorators, and its tagged statements."""
    text = inspect.getsource(inspect.getmodule(function))
    node = next(n for n in ast.parse(text).body if getattr(n, "name", "") == function.__name__)
    node.decorator_list = []
    return node, list(tagged(node, tags_in(text)))


def bent_at(function, i):
    """The code of a function with the value of its i-th tagged statement bent."""
    node, statements = parsed(function)
    body, statement = statements[i]
    target = statement.name if isinstance(statement, ast.FunctionDef) else target_of(statement)
    body.insert(body.index(statement) + 1, ast.parse(f"{target} = bent({target})").body[0])
    code = compile(ast.fix_missing_locations(ast.Module([node], [])), function.__code__.co_filename, "exec")
    return next(c for c in code.co_consts if getattr(c, "co_name", "") == function.__name__)


STATEMENTS = [
    (name, inspect.unwrap(function), i)
    for name, (_, _, functions) in TRANSFORMERS.items()
    for function in functions
    for i in range(len(parsed(inspect.unwrap(function))[1]))
]
QUICK = [of for of in STATEMENTS if of[1].__name__ in ("attention", "layer_norm")]


def test_there_are_as_many_statements_as_lines():
    assert len(STATEMENTS) > 45


@pytest.mark.parametrize(
    "implementation", ["auto", *(pytest.param(how, marks=pytest.mark.thorough) for how in cases.IMPLEMENTATIONS)]
)
@pytest.mark.parametrize(
    ("name", "function", "i"),
    [of if of in QUICK else pytest.param(*of, marks=pytest.mark.thorough) for of in STATEMENTS],
    ids=lambda of: getattr(of, "__name__", str(of)),
)
def test_a_bent_statement_moves_the_result(name, function, i, implementation, monkeypatch):
    expected = unchanged(name, implementation)
    monkeypatch.setitem(function.__globals__, "bent", bent)
    monkeypatch.setattr(function, "__code__", bent_at(function, i))
    assert np.abs(probabilities(name, implementation) - expected).max() > 1e-6
