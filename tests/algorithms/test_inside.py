"""What is recorded is what the oracle computes, line by line; what is replaced is computed on with."""

import collections
import dataclasses
import dis
import pathlib
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from algorithms import (
    REGISTRY,
    d_hidden_state,
    d_transformer,
    e_transformer,
    ed_inference,
    ed_transformer,
    log_loss,
    mh_attention,
)
from algorithms.inside import at, intermediates, intervene, record
from algorithms.machinery.naming import Look, looking
from tests import cases
from training.crosscheck import oracle
from training.crosscheck.tracing import traced

pytestmark = pytest.mark.sampled(2)

X = cases.random_tokens(6, seed=1, n=14)
BATCH = cases.random_tokens(2, 6, seed=2, n=14)
Z = cases.random_tokens(5, seed=3, n=14)
D, E, ED = (cases.random_theta(config) for config in (cases.D, cases.E, cases.ED))
TRANSFORMERS = {8: (ed_transformer, (Z, X, ED)), 9: (e_transformer, (X, E)), 10: (d_transformer, (X, D))}
SLOW = pytest.mark.slow
implementations = pytest.mark.parametrize(  # at these sizes "auto" is "dense"
    "implementation", [*cases.IMPLEMENTATIONS, pytest.param("auto", marks=SLOW)]
)
algorithm = pytest.mark.parametrize("number", TRANSFORMERS)
each_algorithm_and_one_as_printed = pytest.mark.parametrize(
    ("number", "implementation"),
    [*((n, "auto") for n in TRANSFORMERS), (10, "paper"), *(pytest.param(n, "paper", marks=SLOW) for n in (8, 9))],
)


def with_implementation(f, implementation):
    def of(*args):
        return f(*args, implementation=implementation)

    return of


# Against the oracle.


def by_oracle(number):
    """Name → what the oracle's lines of the transformer, of Algorithm 5 and of 4 computed, visit by visit."""
    found = collections.defaultdict(list)

    def observe(event):
        call, statement = event.call, event.statement
        if event.kind != "value" or call.algorithm not in (4, 5, number) or np.ndim(event.value) != 2:
            return False
        callers = [c.statement for c in call.ancestors() if c.statement is not None]
        lines = [s.tags[-1].last for s in (statement, *callers)]
        found[f"{statement.target.removesuffix('_h')}@{'/'.join(lines)}"].append(event.value)
        return False

    args = [oracle.unstack(a) if hasattr(a, "_fields") else np.asarray(a) for a in TRANSFORMERS[number][1]]
    folder = pathlib.Path(oracle.__file__).parent
    with traced(folder, folder.parents[2], observe):
        getattr(oracle, TRANSFORMERS[number][0].__name__)(*args)
    return {name: values for name, values in found.items() if not name.startswith("e@")}  # one token at a time


@algorithm
@implementations
def test_every_line_is_the_oracles(number, implementation):
    f, args = TRANSFORMERS[number]
    expected = by_oracle(number)
    assert len(expected) >= {8: 30, 9: 13, 10: 13}[number], sorted(expected)
    _, seen = record(with_implementation(f, implementation), *expected)(*args)
    for name, values in expected.items():
        finite = np.stack(values).reshape(seen[name].shape)
        assert np.isneginf(finite).any() == (name.startswith("S@5") and bool(re.search("/(6|14)$", name)))
        cases.assert_close(np.maximum(seen[name], -1e9), np.maximum(finite, -1e9), name=name)


@algorithm
@implementations
def test_columns_of_a_sum_to_1_and_are_0_where_masked(number, implementation):
    f, args = TRANSFORMERS[number]
    names = {8: ("A/5", "A/14", "A/16"), 9: ("A",), 10: ("A",)}[number]
    _, seen = record(with_implementation(f, implementation), *names)(*args)
    for name in names:
        np.testing.assert_allclose(seen[name].sum(2), 1, rtol=1e-12)
        if name in ("A/14", "A") and number != 9:
            assert (np.asarray(seen[name])[:, :, np.tri(6, k=-1, dtype=bool)] == 0).all()


def test_axes_of_a_batch():
    """``[layers, H, rows, *batch, columns]``: each sequence's values stand where it does."""
    names = ("A", "S@4", "Q", "K", "Y@2", "Y@3", "X@6", "hidden", "X@10", "P")
    _, seen = record(d_transformer, *names)(BATCH, D)
    for b, x in enumerate(BATCH):
        _, alone = record(d_transformer, *names)(x, D)
        for name in names:
            cases.assert_close(seen[name][..., b, :], alone[name], name=name)


def test_attention_without_layers_or_several_heads_has_no_such_axes():
    W = jax.tree.map(lambda a: a[0], D.layers.attention)
    X = cases.normal(11, 2, 6)
    _, seen = record(mh_attention, "A", "V_tilde@return")(X, X, W, np.tri(6, dtype=bool).T)
    assert (seen["A"].shape, seen["V_tilde@return"].shape) == ((3, 6, 2, 6), (11, 2, 6))


# Nothing else moves.


def program(f, *args):
    """The text of a compiled program, without names and places."""
    text = jax.jit(f).lower(*args).compile().as_text()
    text = re.sub(r", metadata=\{[^}]*\}|^HloModule [^,]*|stack_frame_id=\d+", "", text, flags=re.M)
    return text.split("\nFileNames")[0]


@each_algorithm_and_one_as_printed
def test_a_program_is_the_same_before_and_after_somebody_looked(number, implementation):
    f, args = TRANSFORMERS[number]
    f = with_implementation(f, implementation)
    before = program(f, *args)
    record(f, "P")(*args)
    jax.clear_caches()
    assert program(f, *args) == before


@each_algorithm_and_one_as_printed
def test_names_are_nothing_in_a_compiled_program(number, implementation):
    f, args = TRANSFORMERS[number]

    def plain(*args):
        return with_implementation(f, implementation)(*args)

    def named(*args):
        with looking(Look("beside")):
            return with_implementation(f, implementation)(*args)

    assert program(named, *args) == program(plain, *args)


def test_what_runs_unlooked_at_is_what_is_written():
    lines = REGISTRY[5].lines.__wrapped__
    while hasattr(lines, "__wrapped__"):
        lines = lines.__wrapped__
    record(mh_attention, "A")(
        cases.normal(11, 6),
        cases.normal(11, 6),
        jax.tree.map(lambda a: a[0], D.layers.attention),
        np.ones((6, 6), bool),
    )
    assert "__line__" not in "".join(i.argrepr for i in dis.get_instructions(lines))


@pytest.fixture
def optimized():
    """With XLA's optimizations, as users have them: without, what is handed out may be computed in another fusion."""
    without = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", without)


@pytest.mark.parametrize(
    "implementation", ["paper", "auto", *(pytest.param(how, marks=SLOW) for how in ("dense", "blockwise", "strips"))]
)
def test_the_output_is_bit_for_bit_that_of_the_function(implementation, optimized):
    for number, (f, args) in TRANSFORMERS.items():
        of = with_implementation(f, implementation)
        P, _ = jax.jit(record(of, "A/6" if number == 10 else "A/5", "hidden@8" if number == 10 else "hidden@7"))(*args)
        np.testing.assert_array_equal(P, jax.jit(of)(*args))


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("A", 2 * 3 * 6 * 6),
        (at("A", layer=1), 3 * 6 * 6),
        (at("A", layer=1, head=2, token=-1), 6),
        (at("X@8", layer=0), 11 * 6),
        (at("X@8", layer=jnp.array([0, 1]), token=slice(2, 4)), 2 * 11 * 2),
    ],
)
def test_only_what_was_asked_for_is_kept(name, size):
    """By the program's own account: the outputs, and no stack of all layers beside them."""
    compiled = jax.jit(lambda *args: record(d_transformer, name)(*args)[1]).lower(X, D).compile()
    assert compiled.memory_analysis().output_size_in_bytes <= size * 8 + 64
    if "layer=1" in name:
        assert not re.search(r"f64\[2,(3,6,6|11,6)\]", compiled.as_text())


def test_parts_are_those_of_the_whole():
    whole = record(d_transformer, "A", "X@8")(BATCH, D)[1]
    parts = {
        at("A", layer=1): whole["A"][1],
        at("A", layer=-1, head=0, context=2, token=3): whole["A"][1, 0, 2, :, 3],
        at("A", layer=slice(None, None, -1), head=np.array([2, 0]), token=np.array([5, 1, 3])): whole["A"][::-1][
            :, [2, 0]
        ][..., [5, 1, 3]],
        at("X@8", layer=[1], token=slice(1, None)): whole["X@8"][1:][..., 1:],
    }
    _, seen = record(d_transformer, *parts)(BATCH, D)
    for where, expected in parts.items():
        np.testing.assert_array_equal(seen[where], expected, err_msg=where)


# Under JAX's transformations.


def test_vmap_of_record_and_record_of_vmap():
    _, batch = record(d_transformer, "A", "X@8", "X@10")(BATCH, D)
    _, each = jax.vmap(record(d_transformer, "A", "X@8", "X@10"), (0, None))(BATCH, D)
    _, inside = record(jax.vmap(d_transformer, (0, None)), "A", "X@8", "X@10")(BATCH, D)
    for name, value in batch.items():
        cases.assert_close(jnp.moveaxis(each[name], 0, -2), value, name=name)
        cases.assert_close(inside[name], value, name=name)


def test_nested_vmap_puts_the_outer_axis_first():
    x = cases.random_tokens(2, 3, 4, 6, seed=5, n=14)
    _, flat = record(d_transformer, "A", "Y@2", "X@6")(x, D)
    _, nested = record(jax.vmap(jax.vmap(d_transformer, (0, None)), (0, None)), "A", "Y@2", "X@6")(x, D)
    for name, value in flat.items():
        cases.assert_close(nested[name], value, name=name)


@implementations
def test_grad_of_record_and_record_of_grad(implementation):
    def loss(theta):
        hidden = d_hidden_state(X, theta, implementation=implementation)
        return log_loss(hidden, theta.W_u, jnp.roll(X, -1), weights=jnp.ones(6), implementation=implementation)

    expected = jax.jit(jax.grad(loss))(D)
    _, seen = record(loss, "A", "X@8")(D)
    gradient, seen_1 = jax.jit(jax.grad(record(loss, "A", "X@8"), has_aux=True))(D)
    gradient_2, seen_2 = record(jax.grad(loss), "A", "X@8")(D)
    cases.assert_trees_close(gradient, expected)
    cases.assert_trees_close(gradient_2, expected)
    cases.assert_trees_close(seen_1, seen)
    cases.assert_trees_close(seen_2, seen)


@pytest.mark.parametrize(("remat", "unroll"), [(True, False), ("all but attention", True), (False, True)])
def test_with_layers_computed_again_in_the_backward_pass_or_unrolled(remat, unroll):
    def loss(theta, remat=remat):
        return jnp.square(d_hidden_state(X, theta, remat=remat, unroll=unroll)).sum()

    expected = jax.jit(jax.grad(loss))(D)
    _, seen = record(lambda theta: loss(theta, remat=False), "A", "X@8")(D)
    gradient, seen_1 = jax.jit(jax.grad(record(loss, "A", "X@8"), has_aux=True))(D)
    gradient_2, seen_2 = record(jax.grad(loss), "A", "X@8")(D)
    for found in (gradient, gradient_2):
        cases.assert_trees_close(found, expected)
    for found in (seen_1, seen_2):
        cases.assert_trees_close(found, seen)
    without = jax.grad(intervene(loss, {at("Y@2", layer=1): 0.0}))(D)
    plain = jax.grad(intervene(lambda theta: loss(theta, remat=False), {at("Y@2", layer=1): 0.0}))(D)
    cases.assert_trees_close(without, plain)


def test_a_loop_around_is_in_front():
    def each(xs, theta):
        return jax.lax.scan(lambda _, x: (None, d_transformer(x, theta)), None, xs)[1]

    _, seen = record(each, "A", at("X@8", layer=1), "P")(BATCH, D)
    for b, x in enumerate(BATCH):
        _, alone = record(d_transformer, "A", at("X@8", layer=1), "P")(x, D)
        for name, value in alone.items():
            cases.assert_close(seen[name][b], value, name=name)


def test_bfloat16():
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), D)
    P, seen = jax.jit(record(d_transformer, "A", "S@4", "X@8"))(X, half)
    np.testing.assert_array_equal(P, d_transformer(X, half))
    assert [seen[name].dtype for name in ("A", "S@4", "X@8")] == [jnp.float32, jnp.float32, jnp.bfloat16]
    _, exact = record(d_transformer, "A")(X, D)
    cases.assert_close(seen["A"], exact["A"], 0.1)


def test_many_tokens_where_the_kernel_forms_no_scores():
    theta = cases.random_theta(dataclasses.replace(cases.D, l_max=300), scale=0.2)
    x = cases.random_tokens(300, seed=7, n=14)
    P, seen = record(d_transformer, at("A", layer=0, head=1))(x, theta)
    _, paper = record(with_implementation(d_transformer, "paper"), at("A", layer=0, head=1))(x, theta)
    np.testing.assert_array_equal(P, jax.jit(d_transformer)(x, theta))
    cases.assert_close(seen["A[layer=0, head=1]"], paper["A[layer=0, head=1]"])


@implementations
def test_scores_are_computed_beside_a_kernel_only_where_they_are_asked_for(implementation):
    f = with_implementation(d_transformer, implementation)

    def is_beside(*names):
        return "beside" in {
            eqn.primitive.name for eqn in cases.every_equation(jax.make_jaxpr(record(f, *names))(X, D).jaxpr)
        }

    assert not is_beside("X@8", "Q", "Y@2", "P")
    assert is_beside("X@8", "A") == is_beside("S@4") == (implementation != "paper")


def test_on_a_mesh():
    x = cases.random_tokens(4, 6, seed=2, n=14)
    expected = record(d_transformer, "A", at("X@8", layer=1))(x, D)
    mesh = jax.make_mesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
    with jax.set_mesh(mesh):
        placed = jax.device_put((x, D), (NamedSharding(mesh, P("data")), NamedSharding(mesh, P())))
        found = jax.jit(record(d_transformer, "A", at("X@8", layer=1)))(*placed)
    cases.assert_trees_close(found, expected)


def test_threads_do_not_see_each_other():
    found = {}

    def plain():
        found["plain"] = str(jax.make_jaxpr(lambda x: d_transformer(x, D))(X))

    def trace():
        thread = threading.Thread(target=plain)
        thread.start()
        thread.join()
        return d_transformer(X, D)

    record(trace, "A")()
    assert "named" not in found["plain"]


def test_nothing_of_what_is_looked_at_is_taken_for_it():
    """A compiled function has more than a call: ``lower``, ``eval_shape`` and others."""
    for f in (record(d_transformer, "A"), intervene(d_transformer, {"A": 0.0}), intermediates(d_transformer)):
        assert not hasattr(f, "lower")
        assert f.__name__ == "d_transformer"
    P, seen = jax.eval_shape(record(d_transformer, "A"), X, D)
    assert (P.shape, seen["A"].shape) == ((17, 6), (2, 3, 6, 6))


# What is refused, and what is listed.


def test_intermediates_lists_names_that_record_takes():
    listed = intermediates(ed_transformer)(
        jax.ShapeDtypeStruct((2, 5), jnp.int32), jax.ShapeDtypeStruct((2, 6), jnp.int32), ED
    )
    _, seen = record(ed_transformer, *(i.name for i in listed))(Z[None].repeat(2, 0), BATCH, ED)
    assert {i.name: (i.shape, i.dtype) for i in listed} == {name: (v.shape, v.dtype) for name, v in seen.items()}
    assert len(seen) == len(listed) > 40
    A = next(i for i in listed if i.name == "A/16")
    assert (
        repr(A).split()
        == (
            "A/16 float64[2, 3, 5, 2, 6] return of Algorithm 4 in line 2 of Algorithm 5 in line 16 of Algorithm 8, "
            f"{A.place}"
        ).split()
    )
    assert A.place.startswith("alg03_attention.py:")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("X_tilde2", "X_tilde2: expected one of e, e_p, X@3, X_tilde@5, Q, K"),
        ("X", "X: expected one of X@3, X@6, X@8, "),
        ("X@9", "X@9: expected one of X@3, .* d_transformer computes no other of this symbol"),
        ("A/16", "A/16: expected one of A; "),
        (at("A", within=8), r"A\[within=8\]: expected one of A; "),
        (at("X@8", layer=2), r"X@8\[layer=2\]: expected a layer from 0 to 1, got 2"),
        (at("X@8", layer=[0, 5]), "expected a layer from 0 to 1, got .0 5."),
        (at("X@10", layer=1), "expected no layer, since it is not computed in every layer"),
        (at("X@8", head=1), "expected no head, since it has no such axis"),
        (at("X@8", context=1), "expected no context, since it has no such axis"),
        (at("A", head=3), "expected a head from 0 to 2, got 3"),
        (at("A", token=-7), "expected a token from 0 to 5, got -7"),
    ],
)
def test_what_is_not_there(name, says):
    for f in (record(d_transformer, name), intervene(d_transformer, {name: 0.0})):
        with pytest.raises(ValueError, match=f"^({says}|{re.escape(name)}: {says})"):
            f(X, D)


def test_what_cannot_be():
    with pytest.raises(
        ValueError, match=r"A: expected a number, or an array \[3, 6, 6\] or \[2, 3, 6, 6\], got \[2, 2\]"
    ):
        intervene(d_transformer, {"A": jnp.ones((2, 2))})(X, D)
    with pytest.raises(ValueError, match="A: expected a function that keeps the shape"):
        intervene(d_transformer, {"A": lambda A: A[0]})(X, D)
    with pytest.raises(ValueError, match="expected a loop with a known number of iterations, got a while loop"):
        record(ed_inference, "A/16")(Z, ED, tau=0.0, key=jax.random.key(0))
    with pytest.raises(ValueError, match=r"write jax.grad\(intervene\(loss"):
        intervene(jax.grad(lambda theta: d_transformer(X, theta)[0, 0]), {"X@6": 0.0})(D)
    with pytest.raises(ValueError, match="names: expected each once"):
        record(d_transformer, "A", "A")
