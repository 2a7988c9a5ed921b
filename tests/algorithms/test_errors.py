"""Every message for a wrong input: what was expected, what came, and what to do; see messages.txt."""

import re

import jax
import pytest

import algorithms as alg
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
