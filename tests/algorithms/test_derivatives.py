"""First and second derivatives of every public function that returns floats, by every argument that is a float.

For each implementation that runs on this machine, of ``F = Σ sin(f) ⊙ G`` with a fixed random G, along a random
direction in all arguments at once and in each by itself: the gradient is the central difference of F, the product with
the Hessian that of the gradient, in reverse over reverse and, where the lines are printed, in forward over reverse; and
``vmap`` of the gradient is the gradient of each example.
"""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify

import algorithms
from algorithms import (
    UNIDIRECTIONAL,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
    banded,
    documents,
    padding,
)
from algorithms.layers import lines_of
from algorithms.ops.attention import blockwise, strips
from tests import cases
from tests.algorithms.test_attention import head_params, mh_params

pytestmark = pytest.mark.sampled(2)

EVERY = (*cases.IMPLEMENTATIONS, "auto")
L = 5
D = cases.random_theta(DTransformerConfig(L=1, **cases.TINY))
E = cases.random_theta(ETransformerConfig(L=1, d_f=2, **cases.TINY))
ED = cases.random_theta(EDTransformerConfig(L_enc=1, L_dec=1, **cases.TINY))
x, z = cases.random_tokens(L, n=7), cases.random_tokens(4, n=7, seed=1)
X, Z, V = (cases.normal(3, l, seed=seed) for seed, l in enumerate((L, 4, 4)))
W_u, b_u, W_e = cases.normal(7, 3, seed=4), cases.normal(7, seed=5), cases.normal(3, 7, seed=6)
weights = jnp.array([1.0, 0.5, 0.0, -2.0, 0.0])
HOLES = jnp.asarray(np.random.default_rng(0).random((4, L)) < 0.5).at[:, 3].set(False)
MASKS = {
    "unidirectional": UNIDIRECTIONAL,
    "a band with padding": banded(2) & padding(3),
    "documents": documents(jnp.array([0, 0, 1, 1, 2])),
    "holes": HOLES,
    "nothing": padding(0),
}
KEY = jax.random.key(0)
GATO_CONFIG = algorithms.GatoConfig(L=1, patch=2, channels=1, d_r=4, n_groups=2, n_places=2, **cases.TINY)
GATO = cases.random_like(jax.eval_shape(lambda key: algorithms.init_gato(key, GATO_CONFIG), KEY))
IMAGE = 0.9 * jnp.tanh(cases.normal(4, 4, 1, seed=7))
PATCHES = cases.normal(2, 2, 1, 4, seed=8)
PLACES = algorithms.raster_places(4, 4, side=2, n_places=2)


def both(x):
    return jnp.stack([x, x[::-1]])


def of_columns(function, *first, **options):
    """A function of activations in place of tokens, with an implementation."""
    return lambda how, **arguments: function(*first, **arguments, **options, implementation=how)


def embedding(algorithm, how, theta):
    """Lines 1-3, which the loop over the layers starts from."""
    return lines_of(algorithm, x, theta, implementation=how).embedding(x, theta)


# name → (a function of the implementation and of named floats or pytrees of floats, these, the implementations)
CASES = {
    "token_embedding": (lambda how, **a: algorithms.token_embedding(x, implementation=how, **a), {"W_e": W_e}, EVERY),
    "positional_embedding": (
        lambda how, **a: algorithms.positional_embedding(x, implementation=how, **a),
        {"W_p": W_e},
        EVERY,
    ),
    "single_query_attention": (
        lambda how, **a: algorithms.single_query_attention(**a),
        {"e": X[:, 0], "E": Z, "W_qkv": head_params(d_x=3, d_z=3)},
        ("paper",),
    ),
    "attention": (
        lambda how, **a: algorithms.attention(**a, mask=UNIDIRECTIONAL, implementation=how),
        {"X": X, "Z": Z, "W_qkv": head_params(d_x=3, d_z=3)},
        EVERY,
    ),
    "mh_attention": (
        lambda how, **a: algorithms.mh_attention(**a, mask=padding(3), implementation=how),
        {"X": X, "Z": Z, "W": mh_params(d_x=3, d_z=3)},
        EVERY,
    ),
    "layer_norm": (
        lambda how, **a: algorithms.layer_norm(**a, epsilon=0.1, implementation=how),
        {"e": X, "gamma": X[:, 1], "beta": X[:, 2]},
        EVERY,
    ),
    "rms_norm": (lambda how, **a: algorithms.rms_norm(**a, implementation=how), {"e": X, "gamma": X[:, 1]}, EVERY),
    "unembedding": (lambda how, **a: algorithms.unembedding(**a), {"e": X, "W_u": W_u, "b_u": b_u}, ("paper",)),
    "unembedding, capped": (
        lambda how, **a: algorithms.unembedding(**a, cap=1.5),
        {"e": X, "W_u": W_u, "b_u": b_u},
        ("paper",),
    ),
    "log_loss": (
        lambda how, **a: algorithms.log_loss(**a, targets=x, implementation=how),
        {"X": X, "W_u": W_u, "b_u": b_u, "weights": weights},
        EVERY,
    ),
    "log_loss, smoothed, with padding": (
        lambda how, **a: algorithms.log_loss(
            **a, targets=x % 5, label_smoothing=0.1, N_V=5, cap=1.5, implementation=how
        ),
        {"X": X, "W_u": W_u, "b_u": b_u, "weights": weights},
        EVERY,
    ),
    "token_losses": (
        lambda how, **a: algorithms.token_losses(**a, targets=x, label_smoothing=0.1, implementation=how),
        {"X": X, "W_u": W_u, "b_u": b_u},
        EVERY,
    ),
    "gelu": (lambda how, **a: algorithms.gelu(**a), {"x": 3 * X}, ("paper",)),
    "gelu_tanh": (lambda how, **a: algorithms.gelu_tanh(**a), {"x": 3 * X}, ("paper",)),
    "relu": (lambda how, **a: algorithms.relu(**a), {"x": X}, ("paper",)),
    "d_token_losses": (lambda how, theta: algorithms.d_token_losses(x, theta, implementation=how), {"theta": D}, EVERY),
    "e_token_losses": (
        lambda how, theta: algorithms.e_token_losses(x, theta, x_tilde=x.at[1].set(4), implementation=how),
        {"theta": E},
        EVERY,
    ),
    "ed_token_losses": (
        lambda how, theta: algorithms.ed_token_losses(x[:3], x, theta, implementation=how),
        {"theta": ED},
        EVERY,
    ),
    "d_hidden_state": (lambda how, theta: algorithms.d_hidden_state(x, theta, implementation=how), {"theta": D}, EVERY),
    "d_hidden_state, packed": (
        lambda how, theta: algorithms.d_hidden_state(
            x, theta, segments=jnp.array([0, 0, 1, 1, 1]), positions=jnp.array([0, 1, 0, 1, 2]), implementation=how
        ),
        {"theta": D},
        EVERY,
    ),
    "d_hidden_state, again in the backward pass": (
        lambda how, theta: algorithms.d_hidden_state(x, theta, remat=True, implementation=how),
        {"theta": D},
        EVERY,
    ),
    "d_transformer": (lambda how, theta: algorithms.d_transformer(x, theta, implementation=how), {"theta": D}, EVERY),
    "e_encoding": (
        lambda how, theta: algorithms.e_encoding(x, theta, length=3, implementation=how)[:, :3],
        {"theta": E},
        EVERY,
    ),
    "e_hidden_state": (
        lambda how, theta: algorithms.e_hidden_state(x, theta, length=3, implementation=how)[:, :3],
        {"theta": E},
        EVERY,
    ),
    "e_transformer": (lambda how, theta: algorithms.e_transformer(x, theta, implementation=how), {"theta": E}, EVERY),
    "ed_encoding": (
        lambda how, theta: algorithms.ed_encoding(z, theta, z_length=2, implementation=how)[:, :2],
        {"theta": ED},
        EVERY,
    ),
    "ed_decoding": (
        lambda how, **a: algorithms.ed_decoding(x=x, **a, z_length=3, implementation=how),
        {"Z": Z, "theta": ED},
        EVERY,
    ),
    "ed_hidden_state": (
        lambda how, theta: algorithms.ed_hidden_state(z, x, theta, z_length=3, implementation=how),
        {"theta": ED},
        EVERY,
    ),
    "ed_transformer": (
        lambda how, theta: algorithms.ed_transformer(z, x, theta, implementation=how),
        {"theta": ED},
        EVERY,
    ),
    "lines 1-3 of Algorithm 10": (functools.partial(embedding, "Algorithm 10"), {"theta": D}, EVERY),
    "lines 1-3 of Algorithm 9": (functools.partial(embedding, "Algorithm 9"), {"theta": E}, EVERY),
    "d_hidden_state, of columns": (of_columns(algorithms.d_hidden_state), {"x": X, "theta": D}, EVERY),
    "d_transformer, of columns": (of_columns(algorithms.d_transformer), {"x": X, "theta": D}, EVERY),
    "e_encoding, of columns": (of_columns(algorithms.e_encoding, length=4), {"x": X, "theta": E}, EVERY),
    "e_hidden_state, of columns": (of_columns(algorithms.e_hidden_state, length=4), {"x": X, "theta": E}, EVERY),
    "e_transformer, of columns": (of_columns(algorithms.e_transformer, length=4), {"x": X, "theta": E}, EVERY),
    "ed_encoding, of columns": (of_columns(algorithms.ed_encoding, z_length=3), {"z": Z, "theta": ED}, EVERY),
    "ed_decoding, of columns": (of_columns(algorithms.ed_decoding, z_length=3), {"Z": Z, "x": X, "theta": ED}, EVERY),
    "ed_hidden_state, of columns": (
        of_columns(algorithms.ed_hidden_state, z, z_length=3),
        {"x": X, "theta": ED},
        EVERY,
    ),
    "ed_transformer, of columns": (of_columns(algorithms.ed_transformer, z, z_length=3), {"x": X, "theta": ED}, EVERY),
    "mu_law": (lambda how, **a: algorithms.mu_law(**a), {"x": X}, ("paper",)),
    "inverse_mu_law": (lambda how, **a: algorithms.inverse_mu_law(**a), {"y": 0.9 * jnp.tanh(X)}, ("paper",)),
    "raster_patches": (lambda how, **a: algorithms.raster_patches(**a, side=2), {"image": IMAGE}, ("paper",)),
    "patch_embedding": (
        lambda how, **a: algorithms.patch_embedding(**a, row=PLACES[0], column=PLACES[1], implementation=how),
        {"patches": PATCHES, "image": GATO.image},
        EVERY,
    ),
    "gato_embedding": (
        lambda how, **a: algorithms.gato_embedding(
            x, at=jnp.array([-1, 0, 1, 2, 3]), row=PLACES[0], column=PLACES[1], implementation=how, **a
        ),
        {"patches": PATCHES, "theta": GATO.transformer, "image": GATO.image},
        EVERY,
    ),
    "d_training": (
        lambda how, **a: algorithms.d_training(
            both(x), **a, N_epochs=1, lengths=jnp.array([5, 3], jnp.uint8), implementation=how
        ),
        {"theta": D, "eta": jnp.asarray(0.1)},
        EVERY,
    ),
    "e_training": (
        lambda how, **a: algorithms.e_training(
            both(x), **a, N_epochs=1, p_mask=0.5, key=KEY, lengths=jnp.array([5, 3]), implementation=how
        ),
        {"theta": E, "eta": jnp.asarray(0.1)},
        EVERY,
    ),
    "ed_training": (
        lambda how, **a: algorithms.ed_training(
            both(z), both(x), **a, N_epochs=1, z_lengths=jnp.array([2, 4]), implementation=how
        ),
        {"theta": ED, "eta": jnp.asarray(0.1)},
        EVERY,
    ),
}
for name, mask in MASKS.items():
    for rate in (0.0, 0.3):
        CASES[f"scaled_dot_product_attention, {name}, dropout {rate}"] = (
            lambda how, mask=mask, rate=rate, **a: algorithms.scaled_dot_product_attention(
                **a, mask=mask, implementation=how, dropout=rate, key=KEY if rate else None
            ),
            {"Q": X, "K": Z if name != "documents" else X[::-1], "V": V if name != "documents" else 2 * X},
            EVERY,
        )
QUICK = (
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
    """Blocks of a few tokens, so that small sequences have several of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blockwise, "BLOCK", 2)
        patch.setattr(strips, "LEAST", 2)
        jax.clear_caches()
        yield
    jax.clear_caches()


def normal_like(tree, seed):
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: jnp.asarray(rng.standard_normal(a.shape)), tree)


def dot(a, b):
    return sum(jnp.vdot(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def plus(a, step, b):
    return jax.tree.map(lambda p, q: p + step * q, a, b)


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
        (w, jax.tree.map(lambda up, down: up - down, *(f(plus(arguments, s * k * step, direction)) for s in (1, -1))))
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


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        pytest.param(name, how, marks=() if (name, how) in QUICK else pytest.mark.slow)
        for name, (_, _, hows) in CASES.items()
        for how in hows
    ],
)
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
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *several)
    mapped = jax.jit(jax.vmap(jax.grad(F)))(stacked)
    for b, example in enumerate(several):
        own = jax.tree.map(lambda leaf, b=b: leaf[b], mapped)
        assert_near(own, gradient(example)[1], f"example {b}, by ", 1e-11)


def test_every_public_function_that_returns_floats_is_here():
    without_floats = {
        "sinusoidal_positional_embedding",
        "undiscretize",
    }  # its arguments are integers and static numbers
    named = {name.split(",")[0] for name in CASES}
    for name in vars(algorithms).keys() - without_floats:
        function = getattr(algorithms, name)
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
        signature = inspect.signature(getattr(algorithms, function))
        annotations = {n: str(p.annotation) for n, p in signature.parameters.items()}
        floats = {n for n, annotation in annotations.items() if "Float[Array" in annotation or "Params" in annotation}
        tokens = {n for n in floats if "Integer[Array" in annotations[n]}
        assert not tokens or f"{function}, of columns" in CASES, name
        floats = floats if name.endswith("of columns") else floats - tokens
        optional = {"b_u"} if "unembedding" not in name and "loss" not in name else set()
        assert floats - optional - {"p_mask", "tau"} <= arguments.keys(), name


@pytest.mark.parametrize(
    ("name", "implementation"),
    [
        pytest.param(name, how, marks=() if (name, how) in QUICK[:4] else pytest.mark.slow)
        for name, how in itertools.chain.from_iterable(
            ((name, how) for how in hows) for name, (_, _, hows) in CASES.items()
        )
    ],
)
def test_no_nan_on_the_way(name, implementation):
    """``checkify`` finds no NaN and no division by 0 in value and gradient of valid input, nor does ``debug_nans``."""
    f = jax.value_and_grad(scalar_of(name, implementation))
    error, _ = jax.jit(checkify.checkify(f, errors=checkify.float_checks))(CASES[name][1])
    error.throw()
    with jax.debug_nans(True):
        jax.block_until_ready(jax.jit(f)(CASES[name][1]))


@pytest.mark.parametrize("tau", [0.0, 1e-40, 100.0, float("inf")])
def test_no_nan_on_the_way_to_a_token(tau):
    tau, key = jnp.asarray(tau), jax.random.key(1)

    def generate(tau):
        y = algorithms.d_inference(x[:2], D, l_gen=3, tau=tau, key=key)
        return y, algorithms.ed_inference(z, ED, tau=tau, key=key)

    error, _ = jax.jit(checkify.checkify(generate, errors=checkify.float_checks))(tau)
    error.throw()
    with jax.debug_nans(True):
        jax.block_until_ready(generate(tau))
