"""What is replaced is computed on with, in every turn of every loop; gradients are those of such changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from algorithms.inside import at, gradients, intervene, record
from tests import cases
from tests.algorithms.test_inside import BATCH, ED, D, E, X, Z, implementations, with_implementation
from training import oracle

pytestmark = pytest.mark.sampled(1, tests=5)

# What is replaced.


@implementations
def test_replaced_by_itself(implementation):
    f = with_implementation(alg.d_transformer, implementation)
    expected = f(BATCH, D)
    np.testing.assert_array_equal(intervene(f, {"X@6": lambda X: X})(BATCH, D), expected)
    cases.assert_close(intervene(f, {"A": lambda A: A, at("S@5", layer=1): lambda S: S})(BATCH, D), expected)


@pytest.mark.end_to_end
def test_the_last_hidden_state_of_another_run_is_its_output():
    _, seen = record(alg.d_transformer, "X@8", "X@10")(BATCH, D)
    expected, other = alg.d_transformer(BATCH, D), (BATCH + 1) % 14
    for changes in (
        {at("X@8", layer=1): seen["X@8"][1]},
        {"X@8": seen["X@8"]},
        {"X@10": seen["X@10"]},
        {at("X@8", layer=slice(1, 2)): seen["X@8"][1:]},
        {at("X@8", layer=[0, -1]): seen["X@8"]},
    ):
        cases.assert_close(intervene(alg.d_transformer, changes)(other, D), expected)


def test_parts_of_several_axes():
    """Heads, tokens and context tokens, in any form, against the same change of the whole."""

    def change(A):
        A = np.array(A)
        A[np.ix_([2, 0], [1, 4], [0, 1], [5, 3])] *= 3
        A[1, 2, :, 3] = 0.25
        return A

    _, seen = record(alg.d_transformer, "A")(BATCH, D)
    changed = seen["A"].at[1].set(change(seen["A"][1]))
    places = {
        at("A", layer=1, head=np.array([2, 0]), context=slice(1, None, 3), token=jnp.array([5, 3])): lambda A: 3 * A,
        at("A", layer=1, head=1, context=2, token=-3): 0.25,
    }
    found, expected = (intervene(alg.d_transformer, changes)(BATCH, D) for changes in (places, {"A": changed}))
    cases.assert_close(found, expected)


@pytest.mark.end_to_end
def test_a_sweep_is_one_vmap():
    layers, heads, tokens = jnp.array([0, 1, 1]), jnp.array([1, 0, 2]), jnp.array([5, 0, -1])

    def without(layer, head, token):
        return intervene(alg.d_transformer, {at("Y@2", layer=layer, head=head, token=token): 0.0})(BATCH, D)

    def seen(layer, head, token):
        where = at("A", layer=layer, head=head, token=token)
        return record(alg.d_transformer, where)(BATCH, D)[1][where]

    for f in (without, seen):
        every = jax.jit(jax.vmap(f))(layers, heads, tokens)
        for i, chosen in enumerate(zip(layers.tolist(), heads.tolist(), tokens.tolist(), strict=True)):
            cases.assert_close(every[i], f(*chosen))


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize(("word", "size"), [("layer", 2), ("head", 3), ("token", 6), ("context", 6)])
def test_a_traced_index_out_of_range_is_nan_in_value_and_gradient(word, size):
    def seen(theta, index):
        where = at("A", **{word: index})
        return record(alg.d_transformer, where)(BATCH[0], theta)[1][where].sum()

    def changed(theta, index):
        return intervene(alg.d_transformer, {at("A", **{word: index}): lambda A: 2 * A})(BATCH[0], theta).sum()

    def seen_among_others(theta, index):
        where = at("A", **{word: jnp.array([0, index])})
        return record(alg.d_transformer, where)(BATCH[0], theta)[1][where].sum()

    for f in (seen, changed, seen_among_others):
        of_indices = jax.jit(jax.vmap(jax.value_and_grad(f), (None, 0)))
        value, gradient = of_indices(D, np.arange(-size - 1, size + 1))
        assert np.isfinite(value[1:-1]).all()
        assert all(np.isfinite(np.asarray(g)[1:-1]).all() for g in jax.tree.leaves(gradient))
        of_beyond = [jax.tree.map(lambda a: np.asarray(a)[[0, -1]], (value, gradient))]
        for value, gradient in (*of_beyond, of_indices(D, np.array([size, 200], "uint8"))):
            assert np.isnan(value).all()
            assert np.isnan(gradient.layers.attention.heads.W_q).any((1, 2, 3, 4)).all()


def test_only_the_index_out_of_range_gives_nan():
    for name, word, axis in (("A", "layer", 0), ("A", "token", -1), ("Y@2", "head", 1)):
        _, whole = record(alg.d_transformer, name)(X, D)

        @jax.jit
        def some(indices, name=name, word=word):
            where = at(name, **{word: indices})
            return record(alg.d_transformer, where)(X, D)[1][where]

        expected = jnp.take(whole[name], jnp.array([1, 9, -1]), axis=axis, mode="fill", fill_value=jnp.nan)
        np.testing.assert_allclose(some(jnp.array([1, 9, -1])), expected, rtol=1e-12)


def test_changes_are_made_in_their_order_and_what_is_recorded_is_changed():
    places = {"X@6": lambda X: X + 1, at("X@6", layer=0): lambda X: 2 * X}
    _, seen = record(intervene(alg.d_transformer, places), "X@6", "X_tilde@7")(X, D)
    _, plain = record(alg.d_transformer, "X@6")(X, D)
    cases.assert_close(seen["X@6"][0], 2 * (plain["X@6"][0] + 1))
    X_1 = seen["X@6"][0]
    expected = oracle.layer_norm(np.asarray(X_1[:, 2]), *(np.asarray(a[0]) for a in D.layers.norm2))
    cases.assert_close(seen["X_tilde@7"][0, :, 2], expected)


CHANGES = {"X@8": {at("X@8", layer=0): lambda X: -X}, "A": {at("A", layer=0): lambda A: A * A}}


@implementations
@pytest.mark.parametrize("name", CHANGES)
def test_what_is_recorded_beside_a_change_is_computed_on_with(name, implementation):
    """As with the lines as printed; a change of the weights is seen in them."""
    f, paper = (with_implementation(alg.d_transformer, how) for how in (implementation, "paper"))
    names = ("A", at("S@4", layer=1), "Y@2")
    P, seen = record(intervene(f, CHANGES[name]), *names)(BATCH, D)
    expected, of_paper = record(intervene(paper, CHANGES[name]), *names)(BATCH, D)
    cases.assert_close(P, expected)
    cases.assert_trees_close(seen, of_paper)
    plain, weights = record(paper, "A")(BATCH, D)
    assert np.abs(P - plain).max() > 1e-3
    if name == "A":
        cases.assert_close(seen["A"][0], weights["A"][0] ** 2)


@pytest.mark.end_to_end
@implementations
def test_gradients_are_the_differences_of_interventions(implementation):
    def loss(x):
        return -jnp.log(alg.d_transformer(x, D, implementation=implementation)[3, :, -1]).sum()

    value, _, gradient = gradients(loss, "A", "X@6", "Q", at("hidden", layer=1), "X@10")(BATCH)
    cases.assert_close(value, loss(BATCH))
    places = {
        at("A", layer=1): (0, 3, 1, 5),
        at("X@6", layer=0): (3, 0, 5),
        at("Q", layer=0): (1, 2, 1, 5),
        "X@10": (3, 0, 5),
    }
    for where, index in places.items():

        @jax.jit
        def moved(by, where=where, index=index):
            return intervene(loss, {where: lambda value: value.at[index].add(by)})(BATCH)

        name, layer = getattr(where, "name", where), getattr(where, "layer", ())
        found = gradient[name][(layer, *index) if layer != () else index]
        np.testing.assert_allclose(found, (moved(1e-5) - moved(-1e-5)) / 2e-5, rtol=1e-5, atol=1e-8)
    assert gradient[at("hidden", layer=1)].shape == (13, 2, 6)


DATA = cases.random_tokens(2, 6, seed=4, n=14)
MASKED = {"p_mask": 0.4, "key": cases.key(3)}
# Line 8 of Algorithm 12 computes an X, too: X@8/8 is that of Algorithm 9, which it calls.
TRAINING = {
    11: (
        alg.ed_training,
        alg.ed_transformer,
        (cases.array(np.asarray(DATA)[:, :5]), DATA),
        ED,
        {},
        ("X@19", at("A/16", layer=0)),
    ),
    12: (alg.e_training, alg.e_transformer, (DATA,), E, MASKED, ("X@8/8", at("A", layer=0))),
    13: (alg.d_training, alg.d_transformer, (DATA,), D, {}, ("X@8", at("A", layer=0))),
}


def read_in_training(number, data, n):
    """What the model reads of text n in the first epoch."""
    if number != 12:
        return [x[n] for x in data]
    key = jax.random.fold_in(jax.random.fold_in(MASKED["key"], 0), n)
    is_masked = jax.random.bernoulli(key, MASKED["p_mask"], (DATA.shape[1],))
    return [jnp.where(is_masked, alg.mask_token(E.W_e.shape[1]), DATA[n])]


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("number", TRAINING)
def test_training_shows_every_step(number):
    """Epoch by epoch and text by text, what the model computes before the update."""
    train, f, data, theta, options, names = TRAINING[number]
    options = {**options, "eta": 0.01}
    theta_hat, seen = record(train, *names)(*data, theta, N_epochs=2, **options)
    cases.assert_trees_close(theta_hat, train(*data, theta, N_epochs=2, **options))
    for n in range(2):
        before = train(*(x[:1] for x in data), theta, N_epochs=1, **options) if n else theta
        own = [name.removesuffix("/8") if name == "X@8/8" else name for name in names]
        _, expected = record(f, *own)(*read_in_training(number, data, n), before)
        for name, of_model in zip(names, own, strict=True):
            cases.assert_close(seen[name][0, n], expected[of_model])
    assert all(len(value) == 2 and len(value[1]) == 2 for value in seen.values())


def test_generation_shows_every_step_and_is_steered():
    options = {"l_gen": 4, "tau": 0.0, "key": jax.random.key(0)}
    y, seen = record(alg.d_inference, "X@8", "A")(X[:3], D, **options)
    whole = jnp.concatenate([X[:3], y])
    _, at_once = record(alg.d_transformer, "X@8")(whole[:-1], D)
    for i in range(4):
        cases.assert_close(seen["X@8"][i, ..., 2 + i], at_once["X@8"][..., 2 + i])
    steered = intervene(alg.d_inference, {at("X@8", layer=0): lambda X: -X})(X[:3], D, **options)
    text = jnp.concatenate([X[:3], steered])[:-1]
    P = intervene(alg.d_transformer, {at("X@8", layer=0): lambda X: -X})(text, D)
    assert steered.tolist() == np.argmax(P[:, 2:], axis=0).tolist() != y.tolist()  # each given those before it


def test_translation_is_steered_in_its_while_loop():
    options = {"tau": 0.0, "key": jax.random.key(0), "l_max": 5}
    plain, _ = alg.ed_inference(Z, ED, **options)
    steered, _ = intervene(alg.ed_inference, {at("X@19", layer=1): lambda X: -X})(Z, ED, **options)
    P = intervene(alg.ed_transformer, {at("X@19", layer=1): lambda X: -X})(Z, steered[:1], ED)
    assert steered[1] == jnp.argmax(P[:, -1])
    assert steered.tolist() != plain.tolist()


def test_branches():
    """What only one branch computes is 0 where another is taken."""

    def either(flag, x):
        return jax.lax.cond(flag, lambda: alg.d_transformer(x, D), lambda: jnp.zeros((17, 6)))

    for flag in (True, False):
        P, seen = record(either, "A", at("X@8", layer=1))(jnp.asarray(flag), X)
        expected = record(alg.d_transformer, "A", at("X@8", layer=1))(X, D)
        cases.assert_trees_close((P, seen), jax.tree.map(lambda a, flag=flag: np.asarray(a) * flag, expected))
