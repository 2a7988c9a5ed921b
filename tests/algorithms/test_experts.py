"""Mixtures of experts: the fast path and its gradients against all experts as printed, routing, meshes, bytes."""

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import PAPER, DTransformerConfig, d_token_losses, for_platform
from algorithms.lines import Experts, RMSNorm
from algorithms.machinery.options import using
from algorithms.ops.grouped import Blocks, collect, grouped_product, spread
from tests.cases import assert_trees_close, normal, random_like, random_theta
from training.oracle.lines import weights_of_experts

SILU = {"activation": "silu", "gated": True, "biases": False}
LINES = {
    "MIXTRAL": Experts(n=5, k=2, **SILU),
    "OLMOE": Experts(n=7, k=3, renormalized=False, **SILU),
    "DEEPSEEK": Experts(
        n=6, k=2, scores="sigmoid", choice_bias=True, groups=3, chosen_groups=2, factor=2.5, shared=2, **SILU
    ),
    "QWEN3_NEXT": Experts(n=5, k=2, shared=1, shared_gate=True, **SILU),
    "LLAMA4": Experts(n=5, k=2, scores="sigmoid", renormalized=False, weighted="inputs", shared=1, **SILU),
    "V2": Experts(n=6, k=2, groups=3, chosen_groups=2, best=1, **SILU),
    "GPT_OSS": Experts(n=5, k=2, router_bias=True, clip=0.7, activation="gelu_sigmoid", gated=True),
    "GEMMA4": Experts(n=6, k=2, shared=2, own_norms=True, normalize_output=RMSNorm(epsilon=1e-3), **SILU),
    "plain": Experts(n=3, k=2, activation="relu"),
}
D_E, D_MLP = 11, 7


def parameters(line, d_e=D_E, d_mlp=D_MLP):
    sizes = {"d_e": d_e, "d_mlp": d_mlp, **line.sizes()}
    return random_like(jax.tree.map(lambda s: jax.ShapeDtypeStruct(s.of(sizes), float), line.shapes()))


def computed(line, how, **options):
    """The value and its gradients by X and W, compiled."""

    def loss(X, W):
        with using(implementation=how, **options):
            Y = line(X, W, activation=line.activation)
        return (Y * jnp.sin(jnp.arange(Y.size, dtype=Y.dtype).reshape(Y.shape))).sum(), Y

    return jax.jit(jax.value_and_grad(loss, (0, 1), has_aux=True))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["DEEPSEEK", *(pytest.param(n, marks=pytest.mark.thorough) for n in LINES if n[0] != "D")]
)
@pytest.mark.parametrize("shape", [(1,), pytest.param((2, 13), marks=pytest.mark.thorough), (0,), (3, 0)])
def test_the_chosen_experts_give_what_all_do(name, shape):
    line = LINES[name]
    W, X = parameters(line), normal(D_E, *shape)
    assert_trees_close(computed(line, "auto")(X, W), computed(line, "paper")(X, W))


@pytest.mark.thorough
def test_the_chosen_experts_drop_what_all_do():
    W, X = parameters(LINES["GPT_OSS"]), normal(D_E, 2, 13)
    options = {"dropout": 0.3, "key": jax.random.split(jax.random.key(0), 2)}
    assert_trees_close(*(computed(LINES["GPT_OSS"], how, **options)(X, W) for how in ("auto", "paper")))


@pytest.mark.parametrize("name", ["MIXTRAL", "OLMOE", "DEEPSEEK", "V2"])
def test_weights_are_the_oracles(name):
    line, router = LINES[name], np.random.default_rng(1).normal(size=(LINES[name].n, 29))
    b = np.random.default_rng(2).normal(size=line.n) if line.choice_bias else None

    @jax.jit
    def weights(router, b):
        scores = line.scored(router)
        return line.weights(scores, line.chosen(scores, b))

    G = weights(router, b)
    for t in range(29):
        expected = np.zeros(line.n)
        for i, weight in weights_of_experts(router[:, t], b, line).items():
            expected[i] = weight
        np.testing.assert_allclose(G[:, t], expected, atol=1e-12)


def test_of_equal_scores_the_first_experts_are_chosen():
    assert LINES["MIXTRAL"].chosen(jnp.zeros((5, 3))).tolist() == [[0, 0, 0], [1, 1, 1]]


def test_a_column_reads_only_the_experts_that_it_chooses():
    """By the compiler: as many bytes whether there are 4 experts or 64."""

    def read(n):
        line = Experts(n=n, k=2, **SILU)
        W = jax.eval_shape(lambda: parameters(line, 64, 128))
        f = jax.jit(lambda X, W: line(X, W, activation="silu"))
        return f.lower(jax.ShapeDtypeStruct((64, 1), float), W).compile().cost_analysis()["bytes accessed"]

    of_experts = 2 * 3 * 64 * 128 * 8
    assert read(64) - read(4) < 0.3 * of_experts  # the router's rows
    assert read(64) < 3.5 * of_experts  # each is copied, then read


def test_the_balancing_loss_is_k_for_equal_loads_and_largest_for_one():
    line = LINES["MIXTRAL"]
    router = normal(2, 5, 3, 7)
    scores = jax.vmap(line.scored)(router)
    G = jax.vmap(lambda s: line.weights(s, line.chosen(s)))(scores)
    counted = jnp.ones((3, 7)).at[1, 4:].set(0)
    chosen = np.moveaxis(np.asarray(G > 0), 1, -1)[:, counted > 0].reshape(-1, 5)
    p = np.moveaxis(np.asarray(scores), 1, -1)[:, counted > 0].reshape(-1, 5)
    found = line.balancing_loss(router, G, counted)
    np.testing.assert_allclose(found, 5 * (chosen.mean(0) * p.mean(0)).sum(), rtol=1e-12)
    np.testing.assert_allclose(line.balancing_loss(jnp.zeros_like(router), G, counted), 2, rtol=1e-12)


@pytest.mark.thorough
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LINES)
@pytest.mark.parametrize("T", [1, 31])
def test_the_accelerators_program_gives_the_same(name, T):
    """Traced for a TPU, run here: values and gradients, under vmap of X alone, and gradients of gradients."""
    line = LINES[name]
    W, X = parameters(line), normal(3, D_E, T)

    def found(how):
        f = jax.vmap(computed(line, how), (0, None))

        def second(X, W):
            return sum((g * g).sum() for g in jax.tree.leaves(f(X, W)[1]))

        return jax.jit(lambda X, W: (f(X, W), jax.grad(second, (0, 1))(X, W)))(X, W)

    expected = found("paper")
    with for_platform("tpu"):
        actual = found("auto")
    assert_trees_close(actual, expected)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_a_program_for_an_accelerator_has_ragged_products(platform):
    """Of each expert's three matrices: one of its rows and, for gradients, one of each operand."""
    line = LINES["MIXTRAL"]
    W, X = jax.eval_shape(lambda: parameters(line)), jax.ShapeDtypeStruct((3, D_E, 2, 13), float)
    with for_platform(platform):
        f = jax.jit(jax.vmap(computed(line, "auto"), (0, None)))
        text = jax.export.export(f, platforms=(platform,))(X, W).mlir_module()
    assert text.count('stablehlo.composite "chlo.ragged_dot"') == 9


@pytest.mark.end_to_end
@pytest.mark.parametrize(("R", "n"), [(300, 3), (700, 16)])
def test_the_kernels_for_tpus_multiply_every_row_by_the_matrix_of_its_group(R, n, monkeypatch):
    """In interpret mode: products and both gradients, also where 16 blocks of different groups are one tile."""
    kernels = importlib.import_module("jax.experimental.pallas.ops.tpu.megablox.gmm")
    for name in ("gmm", "tgmm"):
        monkeypatch.setattr(kernels, name, functools.partial(getattr(kernels, name), interpret=True))
    rng = np.random.default_rng(0)
    group = rng.integers(-1, n + 1, R)
    group[group == 1] = 0  # no row is in group 1
    W, X, dY = (rng.normal(size=size).astype(jnp.bfloat16) for size in ((n, 256, 128), (R, 128), (R, 256)))

    def f(X):
        def products(W, X):
            return collect(grouped_product(W, spread(X, blocks), blocks), blocks)

        blocks = Blocks.of(jnp.asarray(group), n)
        Y, vjp = jax.vjp(products, jnp.asarray(W), X)
        return Y, *vjp(jnp.asarray(dY))

    with jax.enable_x64(False), for_platform("tpu"):
        assert str(jax.make_jaxpr(f)(jnp.asarray(X))).count("pallas_call") == 3
        found = jax.jit(jax.vmap(f))(jnp.asarray([X, -X]))
    W, X, dY = (a.astype(float) for a in (W, X, dY))
    within = (group >= 0) & (group < n)
    mine = np.where(within[:, None, None], W[group % n], 0)
    Y, dX = np.einsum("roi,ri->ro", mine, X), np.einsum("roi,ro->ri", mine, dY)
    dW = np.stack([dY[group == g].T @ X[group == g] for g in range(n)])
    for actual, expected in zip(found, ((Y, -Y), (dW, -dW), (dX, dX)), strict=True):
        np.testing.assert_allclose(np.asarray(actual, float), np.stack(expected), rtol=2**-8, atol=2e-3)
    assert not np.any(found[1][:, 1])


def test_nothing_is_promoted_by_jax_in_64_bit_mode():
    config = DTransformerConfig(N_V=7, l_max=5, L=1, H=2, d_e=4, d_mlp=3, variant=PAPER.but(mlp=Experts(n=4, k=2)))
    gradient = jax.grad(lambda theta: d_token_losses(jnp.arange(4), theta).sum())
    with jax.numpy_dtype_promotion("strict"):
        assert jax.eval_shape(gradient, random_theta(config, dtype=jnp.float32)).W_e.dtype == jnp.float32
