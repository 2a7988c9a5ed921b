"""A cache in parts: what a step reads of it, and generation over many parts."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import GOPHER, LLAMA, T5, d_transformer
from algorithms.lines import ALiBi, Attention, Embedding, Rotary
from tests.cases import traced_anew
from tests.training.generation.test_rings import model
from training.generation import Generator, attending, cache, prefilling, states
from training.generation.prefixes import Prefixes
from training.generation.requests import Request
from training.generation.slots import Slots, sizes_of_parts
from training.mesh.placement import Placement, shardings

pytestmark = pytest.mark.sampled(2, tests=4)

H, H_kv, B, R, d_attn, d_mid = 6, 2, 3, 32, 5, 7
SIZES = (4, 4, 4, 4, 8, 8)


def random_cache():
    rng = np.random.default_rng(0)
    return cache.KeyValues(*(jnp.asarray(rng.normal(size=(H_kv * B, R, d))) for d in (d_attn, d_mid)))


def queries():
    return jnp.asarray(np.random.default_rng(1).normal(size=(H, d_attn, B)))


@pytest.mark.parametrize("window", [None, 1, 6])
@pytest.mark.parametrize("slot", [0, 3, 4, 15, 16, 29, 31])
def test_parts_give_what_all_rows_give(slot, window):
    """Sequences begin at different slots, and one may attend to nothing; rows that are not read are NaN."""
    rows, s = random_cache(), np.arange(R)
    permitted = (s <= slot) & (s >= np.array([[0], [slot // 2], [R]])) & (window is None or slot - s < window)
    of_distances = jnp.asarray(np.random.default_rng(2).normal(size=(H, B, R)))

    def added(start=0, n=None):
        return of_distances[..., start:][..., :n]

    attend = functools.partial(attending.attend_cached, permitted=jnp.asarray(permitted), cap=3.0, of_distances=added)
    expected = attend(queries(), rows)
    assert float(jnp.abs(expected.reshape(H, d_mid, B)[..., 2]).max()) == 0
    starts = np.cumsum([0, *SIZES])
    read = [start <= slot and (window is None or slot - window < end) for start, end in itertools.pairwise(starts)]
    unread = ~np.repeat(read, SIZES)[None, :, None]
    parts = Slots.of(*(jnp.where(unread, jnp.nan, a) for a in (rows.K, rows.V)), 4)
    assert tuple(part.shape[1] for part in parts.V) == SIZES
    found = attend(queries(), parts, slot=jnp.asarray(slot), window=window)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def test_the_step_of_a_loop_copies_no_part():
    """XLA writes a row in place: the compiled loop allocates less than one part besides its arguments."""
    parts = Slots.of(*(jnp.zeros((8, 1024, 32)) for _ in "KV"), 256)

    @functools.partial(jax.jit, donate_argnums=0)
    def loop(parts):
        ones = jnp.ones((8, 32, 1))
        return jax.lax.fori_loop(0, 1000, lambda slot, parts: parts.stored(ones, ones, slot), parts)

    memory = loop.lower(parts).compile().memory_analysis()
    assert memory.temp_size_in_bytes < parts.V[0].nbytes / 4


@pytest.mark.parametrize("n", [64, 128, 4096])
def test_parts_grow_without_moving(n):
    for R in (64, 128, 256, 1024):
        assert sum(sizes_of_parts(R, n)) == R
        assert n > R or sizes_of_parts(2 * R, n)[: len(sizes_of_parts(R, n))] == sizes_of_parts(R, n)
    K, V = (np.random.default_rng(4).normal(size=(6, 64, d)) for d in (d_attn, d_mid))
    grown = Slots.of(jnp.asarray(K), jnp.asarray(V), n).grown(512)
    assert tuple(part.shape[1] for part in grown.V) == sizes_of_parts(512, n)
    for found, expected in zip(grown.rows(), (K, V), strict=True):
        np.testing.assert_array_equal(found, np.pad(expected, ((0, 0), (0, 448), (0, 0))))


WINDOW = Attention(positions=Rotary(base=20.0), biases=False, window=70)
VARIANTS = {
    "LLAMA": LLAMA,
    "GOPHER": GOPHER,
    "windows in turn": LLAMA.but(attention=(WINDOW, WINDOW.but(window=None))),
    "distances": LLAMA.but(attention=Attention(positions=ALiBi(), biases=False)),
    "T5's distances": LLAMA.but(attention=T5.attentions[0], embedding=Embedding(positions=None)),
}


def assert_predicted(config, theta, x, y, log_p):
    """The log-probabilities of y after x are those of one forward pass."""
    text = np.concatenate([x, y])[:-1]
    P = np.asarray(d_transformer(np.pad(text, (0, config.l_max - len(text))), theta))
    np.testing.assert_allclose(np.exp(log_p), P[y, np.arange(len(x) - 1, len(text))], rtol=1e-10)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", VARIANTS)
def test_texts_over_many_parts_are_predicted_as_by_one_forward_pass(name):
    """Prompts of three lengths, one that joins in another part, and the cache grows from 256 to 512 slots."""
    config, theta = model(VARIANTS[name])
    x = np.random.default_rng(5).integers(17, size=(4, 90)).astype(np.int32)
    lengths, key = np.array([90, 3, 65]), jax.random.key(6)
    begun = Generator(theta, config).begin(x[:3], lengths=lengths, l_gen=100, key=key, tau=1.0)
    assert begun.slots == 256
    begun.extend(100)
    begun.join([Request(x[3, :40], jax.random.split(key, 1)[0], 180, {"tau": 1.0})], keep=[2, 3, 0])
    begun.extend(240)
    assert begun.slots == 512
    for r, prompt in enumerate((x[2, :65], x[3, :40], x[0])):
        start = begun.starts[r]
        assert_predicted(config, theta, prompt, begun.tokens[r, start:], begun.log_p[r, start:])


def test_a_cache_is_in_one_part_off_the_cpu_and_in_a_ring(monkeypatch):
    config, theta = model(LLAMA)
    weights = Generator(theta, config).weights
    x, lengths = np.zeros((2, 24), np.int32), np.array([24, 3])

    def caches(**options):
        read = functools.partial(prefilling.prefill, theta, C=256, **options)
        empty = functools.partial(states.empty_state, B=2, C=256, bos=1)
        return [jax.eval_shape(read, x, lengths), jax.eval_shape(empty, weights)]

    assert all(isinstance(state.caches[0], Slots) for state in caches())
    assert isinstance(caches(limits=(40,) * config.L)[0].caches[0], cache.KeyValues)
    monkeypatch.setattr(cache, "platform_of", lambda _: "tpu")
    with traced_anew():
        for state in caches():
            assert state.caches[0].K.shape == (4, 256, 6)


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("prefixes", [None, 2**20])
def test_several_devices_share_the_cache_of_a_prompt_in_one_part(prefixes):
    """Read at once, joined by others, and with a prefix kept from an earlier text."""
    config, theta = model(LLAMA)
    divided = jax.device_put(theta, shardings(Placement("data=2,model=4").placed(theta)))
    x, lengths = np.arange(24)[None] % config.N_V, np.array([24])
    found = []
    for one in (theta, divided):
        generator = Generator(one, config, prefixes=prefixes and Prefixes(prefixes))
        for _ in range(2):
            begun = generator.begin(x, key=jax.random.key(0), lengths=lengths, l_gen=9)
            begun.join([Request(x[0], jax.random.key(1), 9, {"tau": 0.0})], keep=range(2))
            begun.extend(8)
        found.append(begun.tokens)
    np.testing.assert_array_equal(*found)
