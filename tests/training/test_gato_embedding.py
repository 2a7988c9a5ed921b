"""Gato's embeddings against the oracle's loops; each part of them is needed; values, tokens and bad input."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import algorithms as alg
from tests import cases
from training import oracle
from training.oracle import gato as printed
from training.tasks import gato_embedding as gato

CONFIG = gato.GatoConfig(L=2, patch=2, channels=3, d_r=6, n_groups=2, n_places=5, **cases.SHARED)
IMAGE = np.random.default_rng(3).uniform(-1, 1, (4, 6, 3))


@functools.cache
def params():
    return cases.random_like(jax.eval_shape(lambda key: gato.init_gato(key, CONFIG), jax.random.key(0)))


@functools.cache
def of_image():
    """The patches of the image, their rows and their columns."""
    return tuple(map(jnp.asarray, gato.raster(IMAGE, side=2, n_places=5)))


def sequence(theta, **options):
    """Text, an image of 2 × 3 patches, and two values; as the function takes it, and as the oracle does."""
    x = jnp.asarray([3, 9] + [99] * 6 + [5, 11])  # where patches are, no token is read
    at = jnp.asarray([-1, -1, *range(6), -1, -1])
    patches, *places = of_image()
    X = gato.gato_embedding(x, patches, at, *places, *theta, **options)
    return X, [3, 9, *printed.patches_of(IMAGE, 2), 5, 11]


def as_numpy(theta):
    return jax.tree.map(np.asarray, theta)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("implementation", cases.EXACT_AND_DEFAULT)
def test_the_embeddings_and_the_distributions_are_the_oracles(implementation):
    theta = params()
    X, elements = sequence(theta, implementation=implementation)
    expected = printed.gato_embedding(elements, as_numpy(theta))
    cases.assert_close(X, expected)
    plain = oracle.unstack(theta.transformer)
    plain.W_e = expected
    hidden = alg.d_hidden_state(X, theta.transformer, implementation=implementation)
    P = alg.d_transformer(X, theta.transformer, implementation=implementation)
    cases.assert_close(alg.unembedding(hidden, theta.transformer.W_u), P)
    cases.assert_close(P, oracle.d_transformer(list(range(10)), plain))


def test_a_batch_of_sequences_has_its_own_patches_at_its_own_columns():
    other = np.random.default_rng(4).uniform(-1, 1, (4, 6, 3))
    patches = gato.raster(np.stack([IMAGE, other]), side=2, n_places=5)[0]
    at = jnp.asarray([[0, 1, 2, 3, 4, 5, -1], [-1, 5, 4, -1, 0, 1, 2]])
    x = cases.random_tokens(2, 7)
    X = gato.gato_embedding(x, patches, at, *of_image()[1:], *params())
    for b, image in enumerate((IMAGE, other)):
        own = printed.patches_of(image, 2)
        elements = [own[n] if n >= 0 else int(v) for n, v in zip(at[b].tolist(), x[b], strict=True)]
        cases.assert_close(X[:, b], printed.gato_embedding(elements, as_numpy(params())))


@pytest.mark.parametrize(
    ("image", "message"),
    [
        (IMAGE[:3], r"patches of side 2 tile, got 3 x 6"),
        (np.zeros((12, 4, 3)), r"at most 5 rows and columns of patches.* got 6 x 2"),
        (np.full((4, 4, 1), np.nan), r"finite numbers from -1 to 1"),
    ],
)
def test_images_that_are_not_patches_are_refused(image, message):
    with pytest.raises(ValueError, match=message):
        gato.raster(image, side=2, n_places=5)


def test_a_patch_without_a_position_makes_nan():
    patches, row, column = of_image()
    e = gato.patch_embedding(patches, row, column.at[2].set(5), params().image)
    assert np.isnan(e[:, 2]).all()
    assert np.isfinite(np.delete(e, 2, axis=1)).all()


@pytest.mark.end_to_end
def test_the_initializer_uses_no_key_twice_and_scales_kernels():
    with jax.debug_key_reuse(True):
        image = gato.init_gato(jax.random.key(0), CONFIG).image
    deviations = [image.K_in.std(), image.K_2.std(), image.W_out.std(), image.W_column.std()]
    assert deviations == pytest.approx([27**-0.5, 54**-0.5, 1 / (2 * 6**0.5), 0.02], rel=0.4)
    assert [set(np.ravel(a)) for a in (image.gamma1, image.beta1, image.gamma2, image.beta2)] == [{1}, {0}] * 2
