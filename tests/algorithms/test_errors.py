"""Every message for a wrong input: what was expected, what came, and what to do; see messages.txt.

And arguments of other kinds that are taken: numbers of NumPy, booleans as weights.
"""

import json
import re

import jax
import numpy as np
import pytest

import algorithms as alg
from algorithms.lines import RMSNorm
from algorithms.machinery.record import Record
from tests import cases
from tests.algorithms import messages

pytestmark = pytest.mark.usefixtures("as_for_users")

SCOPE = messages.names()
d, e, x, xs, X, W_qkv, MASK, KEY = (SCOPE[name] for name in ("d", "e", "x", "xs", "X", "W_qkv", "MASK", "KEY"))
SIZES = SCOPE["SIZES"]
TOLD = dict(messages.entries())
OF_SIGNATURES = [call for call in TOLD if call.startswith("wrong(")]


@pytest.mark.parametrize("call", [call for call in TOLD if call not in OF_SIGNATURES])
def test_a_wrong_input_is_told(call):
    assert messages.raised(call, SCOPE) == TOLD[call]


@pytest.mark.sampled(60)
@pytest.mark.parametrize("call", OF_SIGNATURES)
def test_a_wrong_argument_is_told(call):
    assert messages.raised(call, SCOPE) == TOLD[call]


def test_every_argument_is_told_by_its_name_with_what_was_expected_and_what_came():
    for call in OF_SIGNATURES:
        function, argument, how = re.fullmatch(r'wrong\("(.*)", "(.*)", "(.*)"\)', call).groups()
        kind, named, expected, got = re.fullmatch(r"(\w+): ([\w.]+): expected (.+), got (.+)", TOLD[call]).groups()
        assert named.split(".")[0] in messages.right()[function], call
        assert kind in ("TypeError", "ValueError")
        if how in ("text", "dtype"):
            assert (kind, named.split(".")[0]) == ("TypeError", argument), call
        if how == "text":
            assert got.startswith("str 'text'"), call
        else:
            is_typed = re.match(r"(float|int|uint|bool|key)\w*(<\w+>)?(\[[\d, ]*\]| )", got)
            assert is_typed or expected.startswith("a"), call


def test_the_file_has_every_argument():
    told = {tuple(re.findall(r'"(.*?)"', call)[:2]) for call in OF_SIGNATURES}
    assert told == {(f, a) for f, given in messages.right().items() for a in given}


def test_what_is_not_known_under_jit_is_not_refused():
    """A traced τ, η or length cannot be checked: it is the caller's word."""
    jax.eval_shape(lambda tau: alg.d_inference(x, d, l_gen=1, tau=tau, key=KEY), 1.0)
    jax.eval_shape(lambda eta: alg.d_training(xs, d, N_epochs=1, eta=eta), 0.1)
    jax.eval_shape(lambda length: alg.e_transformer(x, e, length=length), 4)


def test_the_defaults_are_the_papers():
    assert alg.DTransformerConfig(**SIZES).variant is alg.PAPER
    assert not alg.DTransformerConfig(**SIZES).tied
    assert alg.ed_transformer.__wrapped__ is not None
    assert SCOPE["ed_config"](variant=alg.VASWANI).tied
    assert alg.AttentionParams._fields == ("W_q", "b_q", "W_k", "b_k", "W_v", "b_v")


SMALL = {"l_max": 8, "L": 2, "H": 2, "d_e": 16, "d_mlp": 32}
THETA = cases.random_theta(alg.DTransformerConfig(L=1, **cases.TINY))
TOKENS = cases.random_tokens(5, n=7)


def test_sizes_of_numpy():
    config = alg.DTransformerConfig(N_V=np.int64(23), tied=np.True_, **SMALL | {"L": np.uint8(2)})
    assert config == alg.DTransformerConfig(N_V=23, tied=True, **SMALL)
    assert type(config.N_V) is int
    assert type(config.L) is int


def test_numbers_of_numpy_in_records():
    line = RMSNorm(epsilon=np.float32(1e-6))
    assert line == RMSNorm(epsilon=float(np.float32(1e-6)))
    assert Record.from_json(json.loads(json.dumps(alg.PAPER.but(norm=line).to_json()))).norm == line


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_static_numbers_of_numpy(kind):
    e, epsilon = cases.normal(3, 4), kind(0.5)
    np.testing.assert_array_equal(
        alg.layer_norm(e, e[:, 0], e[:, 1], epsilon=epsilon), alg.layer_norm(e, e[:, 0], e[:, 1], epsilon=0.5)
    )
    key = jax.random.key(0)
    dropped = alg.d_transformer(TOKENS, THETA, dropout=epsilon, key=key)
    np.testing.assert_array_equal(dropped, alg.d_transformer(TOKENS, THETA, dropout=0.5, key=key))
    assert alg.d_inference(TOKENS[:2], THETA, l_gen=np.int16(2), tau=kind(0), key=key).shape == (2,)


def test_widths_and_lengths_of_numpy():
    assert alg.banded(np.int32(2)) == alg.banded(2)
    np.testing.assert_array_equal(alg.padding(np.uint8(2)).dense(3, 3), alg.padding(2).dense(3, 3))


@pytest.mark.end_to_end
def test_boolean_weights_say_which_tokens_count():
    X, W_u, counts = cases.normal(3, 5), cases.normal(7, 3, seed=1), np.array([True, False, True, True, False])
    found = jax.value_and_grad(alg.log_loss)(X, W_u, TOKENS, weights=counts)
    expected = jax.value_and_grad(alg.log_loss)(X, W_u, TOKENS, weights=counts.astype(float))
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
