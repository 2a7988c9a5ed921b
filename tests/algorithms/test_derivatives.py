"""First and second derivatives of every public function that returns floats, by every argument that is a float.

For each implementation that runs on this machine, of ``F = Σ sin(f) ⊙ G`` with a fixed random G, along a random
direction in all arguments at once and in each by itself: the gradient is the central difference of F, the product with
the Hessian that of the gradient, in reverse over reverse and, where the lines are printed, in forward over reverse; and
``vmap`` of the gradient is the gradient of each example.
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
from algorithms.lines import MTP
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params

pytestmark = pytest.mark.sampled(2)

EVERY = (*cases.IMPLEMENTATIONS, "auto")
L = 5
D = cases.random_theta(alg.DTransformerConfig(L=1, **cases.TINY))
E = cases.random_theta(alg.ETransformerConfig(L=1, d_f=2, **cases.TINY))
WITH_HEAD = cases.random_theta(alg.DTransformerConfig(L=1, **cases.TINY, variant=alg.PAPER.but(mtp=MTP())))
ED = cases.random_theta(alg.EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY))
x, z = (np.asarray(cases.random_tokens(l, n=7, seed=seed)) for seed, l in enumerate((L, 4)))
X, Z, V = (np.asarray(cases.normal(3, l, seed=seed)) for seed, l in enumerate((L, 4, 4)))
W_u, b_u, W_e = (np.asarray(cases.normal(*of, seed=4 + i)) for i, of in enumerate(((7, 3), (7,), (3, 7))))
weights = np.array([1.0, 0.5, 0.0, -2.0, 0.0])
NOT_0 = weights + 0.25  # where one is 0, a token has no loss, and its weight no gradient
HOLES = jax.device_put((np.random.default_rng(0).random((4, L)) < 0.5) & (np.arange(L) != 3))
MASKS = {
    "unidirectional": alg.UNIDIRECTIONAL,
    "a band with padding": alg.banded(2) & alg.padding(3),
    "near, with padding": alg.near(2) & alg.padding(3),
    "documents": cases.documents([0, 0, 1, 1, 2]),
    "a prefix, near": alg.prefix(3) & alg.near(3),
    "blocks": alg.blocks(cases.array([0, 0, 1, 1, 2])),
    "holes": HOLES,
    "nothing": alg.padding(0),
}
KEY = cases.key(0)


def both(x):
    return np.stack([x, x[::-1]])


def embedding(algorithm, how, theta):
    """Lines 1-3, which the loop over the layers starts from."""
    return cases.by(how, lambda x: lines_of(algorithm, x, theta).embedding(x, theta), jnp.asarray(x))


def of_function(name, *first, **fixed):
    """A public function, of an implementation, if it takes one, and of named floats or pytrees of floats."""
    function = getattr(alg, name)

    def f(how, **arguments):
        options = fixed | ({"implementation": how} if takes_implementation(name) else {})
        return function(*first, **arguments, **options)

    return f


def takes_implementation(name):
    return "implementation" in inspect.signature(getattr(alg, name)).parameters


HEAD, HEADS = head_params(d_x=3, d_z=3), mh_params(d_x=3, d_z=3)
SEGMENTS = {"segments": cases.array([0, 0, 1, 1, 1])}
CACHE = jax.eval_shape(lambda: alg.empty_cache(alg.DTransformerConfig(L=1, **cases.TINY)))
CACHE = jax.tree.map(lambda a: np.zeros(a.shape, a.dtype), CACHE)
LOGITS, TRAINED = {"e": X, "W_u": W_u, "b_u": b_u}, {"eta": cases.array(0.1)}
LOSS = {"X": X, "W_u": W_u, "b_u": b_u}
# name, and what it is a case of → the floats, the arguments before them, and the others
OF_FUNCTIONS = {
    "token_embedding": ({"W_e": W_e}, (x,), {}),
    "positional_embedding": ({"W_p": W_e}, (x,), {}),
    "single_query_attention": ({"e": X[:, 0], "E": Z, "W_qkv": HEAD}, (), {}),
    "attention": ({"X": X, "Z": Z, "W_qkv": HEAD}, (), {"mask": alg.UNIDIRECTIONAL}),
    "mh_attention": ({"X": X, "Z": Z, "W": HEADS}, (), {"mask": alg.padding(3)}),
    "layer_norm": ({"e": X, "gamma": X[:, 1], "beta": X[:, 2]}, (), {"epsilon": 0.1}),
    "rms_norm": ({"e": X, "gamma": X[:, 1]}, (), {}),
    "unembedding": (LOGITS, (), {}),
    "unembedding, capped": (LOGITS, (), {"cap": 1.5}),
    "log_loss": ({**LOSS, "weights": weights}, (), {"targets": x}),
    "log_loss, smoothed, with padding": (
        {**LOSS, "weights": weights},
        (),
        {"targets": x % 5, "label_smoothing": 0.1, "N_V": 5, "cap": 1.5},
    ),
    "token_losses": (LOSS, (), {"targets": x, "label_smoothing": 0.1}),
    "gelu": ({"x": 3 * X}, (), {}),
    "gelu_tanh": ({"x": 3 * X}, (), {}),
    "relu": ({"x": X}, (), {}),
    "d_token_losses": ({"theta": D, "weights": NOT_0}, (x,), {}),
    "e_token_losses": ({"theta": E}, (x,), {"x_tilde": np.where(np.arange(L) == 1, 4, x)}),
    "ed_token_losses": ({"theta": ED}, (x[:3], x), {}),
    "mtp_token_losses": ({"X": X, "theta": WITH_HEAD, "weights": NOT_0}, (), {"x": x}),
    "mtp_hidden_state": ({"X": X, "theta": WITH_HEAD}, (), {"y": x}),
    "d_token_losses, of columns": (
        {"x": X, "theta": D, "weights": NOT_0},
        (),
        {"targets": x, "mask": alg.BIDIRECTIONAL},
    ),
    "d_logits": ({"theta": D}, (x,), SEGMENTS),
    "d_logits, of columns": ({"x": X, "theta": D}, (), {}),
    "e_logits": ({"theta": E}, (x,), {"length": 3}),
    "e_logits, of columns": ({"x": X, "theta": E}, (), {}),
    "ed_logits": ({"theta": ED}, (z, x), {"z_length": 3}),
    "ed_logits, of columns": ({"x": X, "theta": ED}, (z,), {}),
    "read_tokens": ({"theta": D}, (), {"cache": CACHE, "x": x[:3], "n": 0}),
    "read_tokens, of columns": ({"x": X[:, :3], "theta": D}, (), {"cache": CACHE, "n": 1}),
    "d_hidden_state": ({"theta": D}, (x,), {}),
    "d_hidden_state, packed": ({"theta": D}, (x,), SEGMENTS),
    "d_hidden_state, again in the backward pass": ({"theta": D}, (x,), {"remat": True}),
    "d_transformer": ({"theta": D}, (x,), {}),
    "e_encoding": ({"theta": E}, (x,), {"length": 3}),
    "e_hidden_state": ({"theta": E}, (x,), {"length": 3}),
    "e_transformer": ({"theta": E}, (x,), {}),
    "ed_encoding": ({"theta": ED}, (z,), {"z_length": 2}),
    "ed_decoding": ({"Z": Z, "theta": ED}, (), {"x": x, "z_length": 3}),
    "ed_hidden_state": ({"theta": ED}, (z, x), {"z_length": 3}),
    "ed_transformer": ({"theta": ED}, (z, x), {}),
    "d_hidden_state, of columns": ({"x": X, "theta": D}, (), {}),
    "d_transformer, of columns": ({"x": X, "theta": D}, (), {}),
    "e_encoding, of columns": ({"x": X, "theta": E}, (), {"length": 4}),
    "e_hidden_state, of columns": ({"x": X, "theta": E}, (), {"length": 4}),
    "e_transformer, of columns": ({"x": X, "theta": E}, (), {"length": 4}),
    "ed_encoding, of columns": ({"z": Z, "theta": ED}, (), {"z_length": 3}),
    "ed_decoding, of columns": ({"Z": Z, "x": X, "theta": ED}, (), {"z_length": 3}),
    "ed_hidden_state, of columns": ({"x": X, "theta": ED}, (z,), {"z_length": 3}),
    "ed_transformer, of columns": ({"x": X, "theta": ED}, (z,), {"z_length": 3}),
    "d_training": (
        {"theta": D, **TRAINED},
        (both(x),),
        {"N_epochs": 1, "length": np.array([5, 3], np.uint8)},
    ),
    "e_training": (
        {"theta": E, **TRAINED},
        (both(x),),
        {"N_epochs": 1, "p_mask": 0.5, "key": KEY, "length": np.array([5, 3])},
    ),
    "ed_training": (
        {"theta": ED, **TRAINED},
        (both(z), both(x)),
        {"N_epochs": 1, "z_length": np.array([2, 4])},
    ),
}
for name, mask in MASKS.items():
    K, values = (Z, V) if name != "documents" else (X[::-1], 2 * X)
    for rate in (0.0, 0.3):
        options = {"mask": mask, "dropout": rate, "key": KEY if rate else None}
        case = {"Q": X, "K": K, "V": values}, (), options
        OF_FUNCTIONS[f"scaled_dot_product_attention, {name}, dropout {rate}"] = case
# name → (a function of the implementation and of named floats or pytrees of floats, these, the implementations)
CASES = {
    f"lines 1-3 of {algorithm}": (functools.partial(embedding, algorithm), {"theta": theta}, EVERY)
    for algorithm, theta in (("Algorithm 10", D), ("Algorithm 9", E))
}
for name, (floats, first, fixed) in OF_FUNCTIONS.items():
    function = name.split(",")[0]
    hows = EVERY if takes_implementation(function) else ("paper",)
    CASES[name] = (of_function(function, *first, **fixed), floats, hows)
RUNS = [(name, how) for name, (_, _, hows) in CASES.items() for how in hows]
QUICK = (
    *(
        (name, "paper")
        for name in ("token_embedding", "single_query_attention", "mh_attention", "layer_norm", "rms_norm")
    ),
    ("scaled_dot_product_attention, holes, dropout 0.3", "auto"),
    ("scaled_dot_product_attention, a band with padding, dropout 0.0", "blockwise"),
    ("scaled_dot_product_attention, holes, dropout 0.3", "strips"),
    ("scaled_dot_product_attention, nothing, dropout 0.0", "paper"),
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


def dot(a, b):
    return sum(jnp.vdot(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def plus(a, step, b):
    return jax.tree.map(lambda p, q: np.asarray(p) + step * np.asarray(q), a, b)


def scalar_of(name, implementation):
    """F, of all the named arguments as one pytree."""
    f, _, _ = CASES[name]

    def scalar(arguments):
        out = f(implementation, **arguments)
        return dot(jax.tree.map(jnp.sin, out), normal_like(out, 99))

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
        products = {"reverse over reverse": jax.grad(lambda a: dot(jax.grad(F)(a), v))(arguments)}
        if implementation == "paper":
            products["forward over reverse"] = jax.jvp(jax.grad(F), (arguments,), (v,))[1]
            products["reverse over forward"] = jax.grad(lambda a: jax.jvp(F, (a,), (v,))[1])(arguments)
        return products

    for n in arguments:
        along = {m: v[m] if m == n else jax.tree.map(jnp.zeros_like, v[m]) for m in arguments}
        slope = difference(lambda a: gradient(a)[0], arguments, along)
        assert_near(dot(gradient(arguments)[1], along), slope, f"the gradient by {n}")
    expected = difference(lambda a: gradient(a)[1], arguments, v)
    for way, product in hessian_products(arguments, v).items():
        assert_near(product, expected, f"{way}, by ")

    several = [arguments, plus(arguments, 0.1, v)]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *several)
    mapped = jax.jit(jax.vmap(jax.grad(F)))(stacked)
    for b, example in enumerate(several):
        own = jax.tree.map(lambda leaf, b=b: np.asarray(leaf)[b], mapped)
        assert_near(own, gradient(example)[1], f"example {b}, by ", 1e-11)


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
    for name, (_, arguments, _) in CASES.items():
        function = name.split(",")[0]
        if function.startswith("lines"):
            continue
        signature = inspect.signature(getattr(alg, function))
        annotations = {n: str(p.annotation) for n, p in signature.parameters.items()}
        floats = {n for n, annotation in annotations.items() if "Float[Array" in annotation or "Params" in annotation}
        tokens = {n for n in floats if "Integer[Array" in annotations[n]}
        assert not tokens or f"{function}, of columns" in CASES, name
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
