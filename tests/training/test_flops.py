"""The FLOPs that a task states are those of the products in its forward pass, counted in the traced program."""

import functools
import math

import jax
import jax.numpy as jnp
import pytest

from algorithms import (
    ALBERT,
    BERT,
    GEMMA2,
    GPT2,
    LLAMA,
    VASWANI,
    d_hidden_state,
    e_transformer,
    ed_transformer,
    mtp_hidden_state,
)
from algorithms.lines import MTP
from tests import cases
from training.tasks import TASKS

SIZES = {"N_V": 17, "l_max": 13, "H": 4, "d_e": 12, "d_mlp": 11, "d_attn": 6, "d_mid": 5}
CASES = {
    "GPT2": ("d", GPT2, {"L": 3}),
    "LLAMA": ("d", LLAMA, {"L": 2, "H_kv": 2}),
    "GEMMA2": ("d", GEMMA2, {"L": 2, "H_kv": 1}),
    "MTP": ("d", LLAMA.but(mtp=MTP()), {"L": 2, "H_kv": 2}),
    "BERT": ("e", BERT, {"L": 2}),
    "ALBERT": ("e", ALBERT.but(shared_layers=2), {"L": 4, "d_in": 7}),
    "VASWANI": ("ed", VASWANI, {"L_enc": 1, "L_dec": 2}),
}


def flops_in(jaxpr):
    """Two for each multiplication of each product, as often as its loops run."""
    total = 0
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "dot_general":
            (summed, _), _ = eqn.params["dimension_numbers"]
            total += 2 * eqn.outvars[0].aval.size * math.prod(eqn.invars[0].aval.shape[i] for i in summed)
        times = eqn.params.get("length", 1) if eqn.primitive.name == "scan" else 1
        # a cond chooses between attentions with the same products, and computes one of them
        is_cond = eqn.primitive.name == "cond"
        inner = eqn.params["branches"][:1] if is_cond else jax.tree.leaves(tuple(eqn.params.values()))
        programs = (getattr(p, "jaxpr", p) for p in inner if hasattr(p, "eqns") or hasattr(p, "jaxpr"))
        total += sum(times * flops_in(program) for program in programs)
    return total


def both_logits(x, theta, **options):
    """Of Algorithm 10, and of its head for the token after the next, if it has one."""
    X, logits = d_hidden_state(x, theta, **options), theta.variant.unembedding.logits
    return logits(X, theta), theta.mtp and logits(mtp_hidden_state(X, x, theta, **options), theta)


@pytest.mark.parametrize("name", CASES)
def test_flops_are_those_of_the_traced_products(name):
    task, variant, sizes = CASES[name]
    config, l = TASKS[task].config(variant=variant, **SIZES, **sizes), 7
    theta, x = cases.random_theta(config), jnp.zeros(l, int)
    f = {"d": both_logits, "e": e_transformer, "ed": functools.partial(ed_transformer, x)}[task]
    traced = jax.make_jaxpr(functools.partial(f, implementation="paper"))(x, theta)
    assert TASKS[task].flops(config, l) == flops_in(traced.jaxpr)
