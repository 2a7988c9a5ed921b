"""What holds of looking inside, of every named variant, in the algorithm that it was published for."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import algorithms as alg
from algorithms.inside import at, gradients, intervene, record
from tests import cases
from tests.algorithms.test_sharding import mesh_of
from tests.family_cases import attends
from training.crosscheck.changes import ARCHITECTURES, SHARING
from training.crosscheck.variants import with_numbers_that_matter
from training.interpretability.attribution import READS, attribution

pytestmark = pytest.mark.sampled(1)

SIZES = {"N_V": 17, "l_max": 13, "H": 6, "d_e": 10, "d_mlp": 14, "d_attn": 4, "d_mid": 5}
L, H, D_MID, B = 3, 6, 5, 2
L_Z, L_X = 7, 11
QUICK = ("BERT", "GEMMA2", "T5")
NAMES = [name for name, variant in alg.VARIANTS.items() if variant.is_one_stack and attends(variant)]
variants = pytest.mark.parametrize("c", cases.quick_of(QUICK, NAMES), indirect=True)


class Attends(NamedTuple):
    """A line that attends: what it is called, whether to earlier tokens alone, and its parameters' field of theta."""

    line: str
    causal: bool
    field: tuple[str, str]


class Case(NamedTuple):
    """A variant: its transformer as a function of tokens and parameters, and what its values are called."""

    f: Any
    x: tuple[Any, ...]
    theta: Any
    variant: Any
    lines: tuple[Attends, ...]
    stream: str

    @property
    def args(self):
        return *self.x, self.theta

    def using(self, implementation):
        return functools.partial(self.f, implementation=implementation)


@functools.cache
def case(name):
    variant = with_numbers_that_matter(alg.VARIANTS[name])
    sizes: dict[str, Any] = {**SIZES, "variant": variant, "H_kv": 3 if name in SHARING else 6}
    number = ARCHITECTURES.get(name, 10)
    x, z = (cases.random_tokens(B, l, seed=l, n=14) for l in (L_X, L_Z))
    if number == 8:
        theta = cases.random_theta(alg.EDTransformerConfig(L_enc=L, L_dec=L, **sizes))
        lines = (
            Attends("5", False, ("encoder", "attention")),
            Attends("14", True, ("decoder", "self_attention")),
            Attends("16", False, ("decoder", "cross_attention")),
        )
        return Case(alg.ed_transformer, (z, x), theta, variant, lines, "X@19")
    if number == 9:
        theta = cases.random_theta(alg.ETransformerConfig(L=L, d_f=10, **sizes))
        return Case(alg.e_transformer, (x,), theta, variant, (Attends("5", False, ("layers", "attention")),), "X@8")
    theta = cases.random_theta(alg.DTransformerConfig(L=max(L, len(variant.attentions)), **sizes))
    return Case(alg.d_transformer, (x,), theta, variant, (Attends("6", True, ("layers", "attention")),), "X@8")


@pytest.fixture
def c(request):
    return case(request.param)


def changed(X):
    """Another residual stream, by its rows."""
    return X * (1 + jnp.arange(len(X)).reshape(-1, *(1,) * (X.ndim - 1)) / 7)


def permitted(a, variant, layer):
    """Which context tokens a token may attend to, by the definition."""
    t_z, t_x = np.arange(L_Z if a.line in ("5", "16") and a.field[0] != "layers" else L_X), np.arange(L_X)
    t_x = t_z if a.field[0] == "encoder" else t_x
    back = t_x[None] - t_z[:, None]
    window = None if a.line == "16" else variant.attentions[layer % len(variant.attentions)].window
    allowed = (back >= 0) if a.causal else np.ones(back.shape, bool)
    return allowed & (abs(back) < window) if window else allowed


@variants
def test_weights_sum_to_1_and_are_0_where_masked(c):
    _, seen = record(c.using("auto"), *(f"A/{a.line}" for a in c.lines))(*c.args)
    for a in c.lines:
        A = np.asarray(seen[f"A/{a.line}"])
        np.testing.assert_allclose(A.sum(2), 1, rtol=1e-12)
        for layer, A_l in enumerate(A):
            allowed = permitted(a, c.variant, layer)[None, :, None, :]
            assert ((A_l > 0) == allowed).all()


@pytest.mark.end_to_end
@variants
def test_without_a_head_is_with_its_output_weights_at_0(c):
    f = c.using("auto")
    for a in c.lines:
        layers = getattr(c.theta, a.field[0])
        W = getattr(layers, a.field[1])
        shared = c.variant.shared_layers > 1  # the columns are those of all layers
        W = W._replace(W_o=W.W_o.at[slice(None) if shared else 1, :, 2 * D_MID : 3 * D_MID].set(0))
        cut = c.theta._replace(**{a.field[0]: layers._replace(**{a.field[1]: W})})
        without = intervene(f, {at(f"Y@2/{a.line}", layer=None if shared else 1, head=2): 0.0})(*c.args)
        cases.assert_close(without, f(*c.x, cut), name=a.line)
        assert np.abs(without - f(*c.args)).max() > 1e-6


@variants
def test_a_change_of_a_token_reaches_those_that_may_attend_to_it_and_no_other(c):
    f = c.using("auto")
    before = f(*c.args)
    moved = np.abs(intervene(f, {at(c.stream, layer=0, token=4): changed})(*c.args) - before).max((0, 1))
    if c.lines[-1].causal or len(c.lines) == 3:
        assert (moved[:4] < 1e-12).all()
    reached = moved > 1e-9
    assert reached[4:].any() if c.lines[0].causal else reached[4:].all()
    assert reached[4]
    if len(c.lines) == 3:
        moved = np.abs(intervene(f, {at("Z@8", layer=0, token=4): changed})(*c.args) - before).max((0, 1))
        assert (moved > 1e-9).all()


@pytest.mark.end_to_end
@variants
def test_the_gradient_by_the_scores_is_that_of_the_softmax(c):
    """``g_S = A ⊙ (g_A − Σ A g_A)/√d_attn`` behind the mask; before it, times the cap's ``1 − tanh²``."""
    names = [f"{symbol}/{a.line}" for a in c.lines for symbol in ("A", "S@4", "S@5")]

    def loss(*args):
        return jnp.log(c.using("auto")(*args)[3, :, -1]).sum()

    _, seen, g = gradients(loss, *names)(*c.args)
    for a in c.lines:
        A, g_A, S = (of[f"{n}/{a.line}"] for of, n in ((seen, "A"), (g, "A"), (seen, "S@5")))
        expected = A * (g_A - (A * g_A).sum(2, keepdims=True)) / np.sqrt(SIZES["d_attn"])
        assert np.abs(expected).max() > 1e-9
        cases.assert_close(g[f"S@5/{a.line}"], expected, name=a.line)
        cap = c.variant.attentions[0].cap
        if cap is not None:
            expected = expected * (1 - jnp.where(A > 0, S / (cap * np.sqrt(SIZES["d_attn"])), 0) ** 2)
        cases.assert_close(g[f"S@4/{a.line}"], expected, name=a.line)


@variants
def test_the_parts_of_a_logit_add_up_or_are_refused(c):
    if c.f is not alg.d_transformer:
        with pytest.raises(ValueError, match="theta: expected parameters of Algorithm 10"):
            attribution({}, c.theta, jnp.ones(17))
        return
    weights = jnp.asarray(np.random.default_rng(1).standard_normal(17)).at[0].set(0)
    weights = weights - weights.mean()  # so that the softmax's denominator cancels
    P, seen = record(c.using("auto"), *READS)(*c.args)
    adds_up = c.variant.unembedding.cap is None and all(a.normalize_output is None for a in c.variant.attentions)
    if not adds_up:
        with pytest.raises(ValueError, match="expected None, got"):
            attribution(seen, c.theta, weights)
        return
    found = attribution(seen, c.theta, weights).total()
    cases.assert_close(found, jnp.einsum("v,v...->...", weights, jnp.log(P)), 1e-9)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", cases.quick_of(["PAPER"], NAMES))
@pytest.mark.parametrize("sizes", [{"data": 2, "context": 2, "model": 2}, {"replica": 2, "context": 4}, {"model": 8}])
def test_on_a_mesh(name, sizes):
    c = case(name)
    x, f = tuple(jnp.tile(x, (4, 1)) for x in c.x), c.using("auto")
    names = [at(c.stream, layer=1), *(f"A/{a.line}" for a in c.lines)]
    changes = {at(f"Y@2/{c.lines[0].line}", layer=1, head=2): 0.0}

    def looked_at(*args):
        return record(f, *names)(*args), intervene(f, changes)(*args)

    expected = jax.jit(looked_at)(*x, c.theta)
    mesh = mesh_of(**sizes)
    rows = tuple(axis for axis in ("replica", "data") if axis in sizes) or None
    with jax.set_mesh(mesh):
        x = jax.device_put(x, NamedSharding(mesh, P(rows)))
        theta = jax.device_put(c.theta, NamedSharding(mesh, P()))
        found = jax.jit(looked_at)(*x, theta)
    cases.assert_trees_close(jax.device_get(found), jax.device_get(expected), 1e-11)
