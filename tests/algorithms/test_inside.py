"""What is recorded is what the oracle computes, line by line, in a dictionary that is a pytree."""

import collections
import functools
import pathlib
import pickle
import re
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

import algorithms as alg
from algorithms.inside import Recorded, at, intermediates, intervene, record
from algorithms.machinery.naming import Look, looking
from tests import cases
from training import oracle
from training.crosscheck.tracing import traced

pytestmark = pytest.mark.sampled(1, tests=9)

X = cases.random_tokens(6, seed=1, n=14)
BATCH = cases.random_tokens(2, 6, seed=2, n=14)
Z = cases.random_tokens(5, seed=3, n=14)
D, E, ED = (cases.random_theta(config) for config in (cases.D, cases.E, cases.ED))
TRANSFORMERS = {8: (alg.ed_transformer, (Z, X, ED)), 9: (alg.e_transformer, (X, E)), 10: (alg.d_transformer, (X, D))}
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
    return functools.partial(f, implementation=implementation)


# Against the oracle.


def by_oracle(number):
    """Name → what the oracle's lines of the transformer, of Algorithm 5 and of 4 computed, visit by visit."""
    found = collections.defaultdict(list)

    def observe(event):
        call, statement = event.call, event.statement
        if event.kind != "value" or call.algorithm not in (4, 5, number) or np.ndim(event.value) != 2:
            return
        callers = [c.statement for c in call.ancestors() if c.statement is not None]
        lines = [s.tags[-1].last for s in (statement, *callers)]
        found[f"{statement.target.removesuffix('_h')}@{'/'.join(lines)}"].append(event.value)

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


def test_attention_without_layers_or_several_heads_has_no_such_axes():
    W = jax.tree.map(lambda a: np.asarray(a)[0], D.layers.attention)
    X = cases.normal(11, 2, 6)
    _, seen = record(alg.mh_attention, "A", "V_tilde@return")(X, X, W, np.tri(6, dtype=bool).T)
    assert (seen["A"].shape, seen["V_tilde@return"].shape) == ((3, 6, 2, 6), (11, 2, 6))


# Nothing else moves.


def program(f, *args):
    """The text of a compiled program, without names and places."""
    text = jax.jit(f).lower(*args).compile().as_text()
    text = re.sub(r", metadata=\{[^}]*\}|^HloModule [^,]*|stack_frame_id=\d+", "", text, flags=re.M)
    return text.split("\nFileNames")[0]


@each_algorithm_and_one_as_printed
def test_names_are_nothing_in_a_compiled_program(number, implementation):
    f, args = TRANSFORMERS[number]

    def plain(*args):
        return with_implementation(f, implementation)(*args)

    def named(*args):
        with looking(Look("beside")):
            return with_implementation(f, implementation)(*args)

    assert program(named, *args) == program(plain, *args)


@pytest.fixture
def optimized():
    """With XLA's optimizations, as users have them: without, what is handed out may be computed in another fusion."""
    without = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", without)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", cases.quick_of(cases.EXACT_AND_DEFAULT, (*cases.IMPLEMENTATIONS, "auto")))
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
        (at("X@8", layer=cases.array([0, 1]), token=slice(2, 4)), 2 * 11 * 2),
    ],
)
def test_only_what_was_asked_for_is_kept(name, size):
    """By the program's own account: the outputs, and no stack of all layers beside them."""
    compiled = jax.jit(lambda *args: record(alg.d_transformer, name)(*args)[1]).lower(X, D).compile()
    assert compiled.memory_analysis().output_size_in_bytes <= size * 8 + 64
    if "layer=1" in name:
        assert not re.search(r"f64\[2,(3,6,6|11,6)\]", compiled.as_text())


def test_parts_are_those_of_the_whole():
    whole = record(alg.d_transformer, "A", "X@8")(BATCH, D)[1]
    parts = {
        at("A", layer=1): whole["A"][1],
        at("A", layer=-1, head=0, context=2, token=3): whole["A"][1, 0, 2, :, 3],
        at("A", layer=slice(None, None, -1), head=np.array([2, 0]), token=np.array([5, 1, 3])): whole["A"][::-1][
            :, [2, 0]
        ][..., [5, 1, 3]],
        at("X@8", layer=[1], token=slice(1, None)): whole["X@8"][1:][..., 1:],
    }
    _, seen = record(alg.d_transformer, *parts)(BATCH, D)
    for where, expected in parts.items():
        np.testing.assert_array_equal(seen[where], expected, err_msg=where)


# Under JAX's transformations.

REMATS = ((True, False), ("all but attention", True))


@pytest.mark.parametrize(
    ("remat", "unroll", "implementation"),
    [
        *((False, False, how) for how in cases.IMPLEMENTATIONS),
        *(pytest.param(*of, "auto", marks=pytest.mark.end_to_end) for of in REMATS),
    ],
)
def test_grad_of_record_and_record_of_grad(remat, unroll, implementation):
    """Also with layers computed again in the backward pass, or unrolled."""

    def loss(theta, remat=remat):
        hidden = alg.d_hidden_state(X, theta, implementation=implementation, remat=remat, unroll=unroll)
        return alg.log_loss(hidden, theta.W_u, jnp.roll(X, -1), implementation=implementation)

    def plain(theta):
        return loss(theta, remat=False)

    _, seen = record(plain, "A", "X@8")(D)
    expected = jax.jit(jax.grad(plain))(D), seen
    cases.assert_trees_close(jax.jit(jax.grad(record(loss, "A", "X@8"), has_aux=True))(D), expected)
    cases.assert_trees_close(record(jax.grad(loss), "A", "X@8")(D), expected)
    if remat or unroll:
        of_change = (jax.jit(jax.grad(intervene(f, {at("Y@2", layer=1): 0.0})))(D) for f in (loss, plain))
        cases.assert_trees_close(*of_change)


LOOPS = {  # what runs a transformer on several texts → where these stand in what is recorded
    "a batch": (lambda xs: alg.d_transformer(xs, D), lambda a: jnp.moveaxis(a, -2, 0)),
    "scan": (lambda xs: jax.lax.scan(lambda _, x: (None, alg.d_transformer(x, D)), None, xs), lambda a: a),
    "Python's": (lambda xs: [alg.d_transformer(x, D) for x in xs], lambda a: a),
}


@pytest.mark.parametrize("loop", LOOPS)
def test_each_texts_values_stand_where_it_does(loop):
    names = ("A", "S@4", "Q", "Y@2", at("X@8", layer=1), "hidden", "X@10", "P")
    f, first = LOOPS[loop]
    _, seen = record(f, *names)(BATCH)
    for b, x in enumerate(BATCH):
        _, alone = record(alg.d_transformer, *names)(x, D)
        for name in names:
            cases.assert_close(first(seen[name])[b], alone[name], name=name)


def test_bfloat16():
    half = jax.tree.map(lambda a: a.astype(jnp.bfloat16), D)
    P, seen = jax.jit(record(alg.d_transformer, "A", "S@4", "X@8"))(X, half)
    np.testing.assert_array_equal(P, alg.d_transformer(X, half))
    assert [seen[name].dtype for name in ("A", "S@4", "X@8")] == [jnp.float32, jnp.float32, jnp.bfloat16]
    _, exact = record(alg.d_transformer, "A")(X, D)
    cases.assert_close(seen["A"], exact["A"], 0.1)


@implementations
def test_scores_are_computed_beside_a_kernel_only_where_they_are_asked_for(implementation):
    f = with_implementation(alg.d_transformer, implementation)

    def is_beside(*names):
        return "beside" in {
            eqn.primitive.name for eqn in cases.every_equation(jax.make_jaxpr(record(f, *names))(X, D).jaxpr)
        }

    assert not is_beside("X@8", "Q", "Y@2", "P")
    assert is_beside("X@8", "A") == is_beside("S@4") == (implementation != "paper")


def test_threads_do_not_see_each_other():
    found = {}

    def plain():
        found["plain"] = str(jax.make_jaxpr(lambda x: alg.d_transformer(x, D))(X))

    def trace():
        thread = threading.Thread(target=plain)
        thread.start()
        thread.join()
        return alg.d_transformer(X, D)

    record(trace, "A")()
    assert "named" not in found["plain"]


def test_nothing_of_what_is_looked_at_is_taken_for_it():
    """A compiled function has more than a call: ``lower``, ``eval_shape`` and others."""
    f_0 = alg.d_transformer
    for f in (record(f_0, "A"), intervene(f_0, {"A": 0.0}), intermediates(f_0)):
        assert not hasattr(f, "lower")
        assert f.__name__ == "d_transformer"
    P, seen = jax.eval_shape(record(alg.d_transformer, "A"), X, D)
    assert (P.shape, seen["A"].shape) == ((17, 6), (2, 3, 6, 6))


# The dictionary.

NAMES = ("X@8", "A", at("X@6", layer=1))
KEYS = ("A", "X@6[layer=1]", "X@8")


def of(x):
    return record(alg.d_transformer, *NAMES)(x, D)[1]


def in_another_order(x):
    return Recorded({name: 2 * value for name, value in reversed(of(x).items())})


def on_a_mesh(x):
    mesh, specs = jax.make_mesh((1,), ("data",), devices=jax.devices()[:1]), dict.fromkeys(KEYS, PartitionSpec())
    return jax.jit(jax.shard_map(of, mesh=mesh, in_specs=PartitionSpec(), out_specs=Recorded(specs)))(x)


THROUGH = {
    "jit": jax.jit(of),
    "vmap": lambda x: jax.tree.map(lambda a: a[0, 0], jax.vmap(jax.vmap(of))(x[None, None])),
    "scan": lambda x: jax.tree.map(lambda a: a[0], jax.lax.scan(lambda _, x: (None, of(x)), None, x[None])[1]),
    "cond": lambda x: jax.lax.cond(x[0] >= 0, lambda: of(x), lambda: in_another_order(x)),
    "grad": lambda x: jax.grad(record(lambda D: alg.d_transformer(x, D)[0, 0], *NAMES), has_aux=True)(D)[1],
    "shard_map": on_a_mesh,
    "pickle": lambda x: pickle.loads(pickle.dumps(jax.device_get(of(x)))),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("f", THROUGH.values(), ids=THROUGH)
def test_it_stays_what_it_is_through(f):
    found, expected = f(X), of(X)
    assert type(found) is Recorded
    assert set(found) == set(KEYS)
    cases.assert_trees_close(found, expected)


def test_it_is_a_dictionary_whose_leaves_have_its_names():
    seen = of(X)
    assert isinstance(seen, dict)
    assert seen[at("X@6", layer=1)] is seen["X@6[layer=1]"]
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(seen)[0]]
    assert jax.tree.leaves(seen)[2] is seen["X@8"]
    assert [jax.tree_util.keystr(path) for path in paths] == [f"[{name!r}]" for name in KEYS]
    assert {**seen} == dict(seen)


# What is listed.


@pytest.mark.end_to_end
def test_intermediates_lists_names_that_record_takes():
    listed = intermediates(alg.ed_transformer)(
        jax.ShapeDtypeStruct((2, 5), jnp.int32), jax.ShapeDtypeStruct((2, 6), jnp.int32), ED
    )
    _, seen = record(alg.ed_transformer, *(i.name for i in listed))(Z[None].repeat(2, 0), BATCH, ED)
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
