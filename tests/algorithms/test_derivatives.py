"""First and second derivatives of every public function that returns floats, by every argument that is a float.

For each implementation that runs on this machine, of ``F = Σ sin(f) ⊙ G`` with a fixed random G, along a random
direction in all arguments at once and in each by itself: the gradient is the central difference of F, the product with
the Hessian that of the gradient, in reverse over reverse and, where the lines are printed, in forward over reverse; and
loops and ``vmap`` of the gradient, and gradients of checkpoints, are the gradient of each example.
"""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import algorithms as alg
from algorithms.layers import lines_of
from algorithms.machinery.options import hand_derived
from tests import cases
from tests.algorithms import functions
from tests.algorithms.functions import ED, EVERY, D, E, called, x, z

pytestmark = pytest.mark.sampled(2)


def embedding(algorithm, how, theta):
    """Lines 1-3, which the loop over the layers starts from."""
    return cases.by(how, lambda x: lines_of(algorithm, x, theta).embedding(x, theta), jnp.asarray(x))


# name → (a function of the implementation and of named floats or pytrees of floats, these, the implementations)
CASES = {
    f"lines 1-3 of {algorithm}": (functools.partial(embedding, algorithm), {"theta": theta}, EVERY)
    for algorithm, theta in (("Algorithm 10", D), ("Algorithm 9", E))
}
for name, case in functions.CASES.items():
    if not functions.returns(name, "Integer"):
        CASES[name] = functools.partial(called, name), case.floats, functions.implementations_of(name)
RUNS = [(name, how) for name, (_, _, hows) in CASES.items() for how in hows]
QUICK = (
    *(
        (name, "paper")
        for name in ("token_embedding", "single_query_attention", "mh_attention", "layer_norm", "rms_norm")
    ),
    ("scaled_dot_product_attention, holes, dropped", "auto"),
    ("scaled_dot_product_attention, a band with padding", "blockwise"),
    ("scaled_dot_product_attention, holes, dropped", "strips"),
    ("scaled_dot_product_attention, nothing", "paper"),
    ("log_loss", "paper"),
    ("log_loss", "auto"),
    ("log_loss, smoothed, with padding", "auto"),
    ("token_losses", "auto"),
    ("layer_norm", "auto"),
    ("token_embedding", "auto"),
    ("unembedding", "paper"),
    ("gelu", "paper"),
)


@pytest.fixture(scope="module", autouse=True)
def _small_blocks():
    with cases.small_blocks(2, LEAST=2):
        yield


def normal_like(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), tree)


def plus(a, step, b):
    return jax.tree.map(lambda p, q: np.asarray(p) + step * np.asarray(q), a, b)


def scalar_of(name, implementation):
    """F, of all the named arguments as one pytree."""
    f, _, _ = CASES[name]

    def scalar(arguments):
        out = f(implementation, **arguments)
        return cases.dot(jax.tree.map(jnp.sin, out), normal_like(out, 99))

    return scalar


def difference(f, arguments, direction, step=1e-4):
    """A fourth-order central difference along a direction."""
    terms = [
        (
            w,
            jax.tree.map(
                lambda up, down: np.asarray(up) - np.asarray(down),
                *(f(plus(arguments, s * k * step, direction)) for s in (1, -1)),
            ),
        )
        for k, w in ((1, 2 / 3), (2, -1 / 12))
    ]
    return jax.tree.map(
        lambda *ds: sum(w * d for (w, _), d in zip(terms, ds, strict=True)) / step, *(d for _, d in terms)
    )


def assert_near(actual, expected, what, tolerance=1e-6):
    """Every array within the tolerance of the largest entry of all, or of 1."""
    leaves = jax.tree.leaves(expected)
    scale = max([1.0, *(float(np.abs(leaf).max(initial=0)) for leaf in leaves)])
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(actual), leaves, strict=True):
        place = f"{what}{jax.tree_util.keystr(path)}"
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale, err_msg=place, equal_nan=False)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "implementation"), cases.quick_of(QUICK, RUNS))
def test_derivatives(name, implementation):
    arguments, F = CASES[name][1], scalar_of(name, implementation)
    gradient = jax.jit(jax.value_and_grad(F))
    v = normal_like(arguments, 7)

    @jax.jit
    def hessian_products(arguments, v):
        products = {"reverse over reverse": jax.grad(lambda a: cases.dot(jax.grad(F)(a), v))(arguments)}
        if implementation == "paper":
            products["forward over reverse"] = jax.jvp(jax.grad(F), (arguments,), (v,))[1]
            products["reverse over forward"] = jax.grad(lambda a: jax.jvp(F, (a,), (v,))[1])(arguments)
        return products

    for n in arguments:
        along = {m: v[m] if m == n else jax.tree.map(jnp.zeros_like, v[m]) for m in arguments}
        slope = difference(lambda a: gradient(a)[0], arguments, along)
        assert_near(cases.dot(gradient(arguments)[1], along), slope, f"the gradient by {n}")
    expected = difference(lambda a: gradient(a)[1], arguments, v)
    for way, product in hessian_products(arguments, v).items():
        assert_near(product, expected, f"{way}, by ")

    several = [arguments, plus(arguments, 0.1, v)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *several)
    again = jax.checkpoint(F)

    @jax.jit
    def of_all(stacked):
        return {
            "vmap": jax.vmap(jax.grad(F))(stacked),
            "lax.map": jax.lax.map(jax.grad(F), stacked),
            "vmap of a checkpoint": jax.grad(lambda stacked: jax.vmap(again)(stacked).sum())(stacked),
            "lax.map of a checkpoint": jax.grad(lambda stacked: jax.lax.map(again, stacked).sum())(stacked),
        }

    for way, gradients in of_all(stacked).items():
        for b, example in enumerate(several):
            own = jax.tree.map(lambda leaf, b=b: np.asarray(leaf)[b], gradients)
            assert_near(own, gradient(example)[1], f"{way}, example {b}, by ", 1e-11)


def test_every_public_function_that_returns_floats_is_here():
    without_floats = {"sinusoidal_positional_embedding"}  # of integers and static numbers
    named = {name.split(",")[0] for name in CASES}
    for name in vars(alg).keys() - without_floats:
        function = getattr(alg, name)
        if inspect.isfunction(function) and not name.startswith("init_"):
            returned = str(inspect.signature(function).return_annotation)
            if "Float" in returned or "Params" in returned:
                assert name in named, name


def test_every_float_argument_is_varied():
    """Of the signatures' arrays of floats, and of the parameters in pytrees; what may be tokens or columns of
    embeddings in a case of its own.
    """
    for name, (arguments, _) in functions.CASES.items():
        function = name.split(",")[0]
        annotations = {n: str(p.annotation) for n, p in functions.signature_of(name).parameters.items()}
        floats = {n for n, annotation in annotations.items() if "Float[Array" in annotation or "Params" in annotation}
        tokens = {n for n in floats if "Integer[Array" in annotations[n]}
        assert not tokens or f"{function}, of columns" in CASES or functions.returns(name, "Integer"), name
        floats = floats if name.endswith("of columns") else floats - tokens
        optional = {"b_u"} if "unembedding" not in name and "loss" not in name else set()
        assert floats - optional - {"p_mask", "tau"} <= arguments.keys(), name


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("name", "implementation"), cases.quick_of(QUICK[:4], RUNS))
def test_no_nan_on_the_way(name, implementation):
    """``checkify`` finds no NaN and no division by 0 in value and gradient of valid input, nor does ``debug_nans``."""
    f = jax.value_and_grad(scalar_of(name, implementation))
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.float_checks))(CASES[name][1])
    error.throw()
    with jax.debug_nans(True):
        jax.block_until_ready(jax.jit(f)(CASES[name][1]))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("tau", [0.0, 1e-40, 100.0, float("inf")])
def test_no_nan_on_the_way_to_a_token(tau):
    tau, key = jnp.asarray(tau), jax.random.key(1)

    def generate(tau):
        y = alg.d_inference(x[:2], D, l_gen=3, tau=tau, key=key)
        return y, alg.ed_inference(z, ED, tau=tau, key=key)

    error, _ = jax.jit(checkify.checkify(generate, errors=checkify.float_checks))(tau)
    error.throw()
    with jax.debug_nans(True):
        jax.block_until_ready(generate(tau))


def on_the_way(theta):
    """A loss that a compiled function and a loop are in."""

    def turn(total, _):
        return total + alg.d_token_losses(x, theta).sum(), None

    return jax.jit(lambda: jax.lax.scan(turn, 0.0, length=2)[0])()


def test_forward_mode_of_rules_derived_by_hand_is_refused():
    for push in (jax.jvp, lambda f, at, v: jax.linearize(f, *at)[1](*v)):
        with pytest.raises(TypeError, match=r"forward-mode .* to a custom_vjp function"):
            push(on_the_way, (D,), (D,))


def test_a_value_that_is_not_differentiated_may_move():
    """Forward over reverse, where reverse mode is by some arguments of a rule only, and forward mode by the others."""
    product = hand_derived(lambda a, b: (a * b, (a, b)), lambda kept, g: (g * kept[1], g * kept[0]))
    assert jax.jvp(lambda b: jax.grad(product)(2.0, b), (3.0,), (1.0,)) == (3.0, 1.0)
