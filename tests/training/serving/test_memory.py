"""A batch takes memory by what its requests asked for, and what asks for more waits, or is refused."""

import functools
import queue
import time

import jax
import numpy as np
import pytest

from algorithms import DTransformerConfig
from tests.cases import later, random_theta
from tests.own_lines.retention import HYBRID
from training.data.tokenizers import CharacterTokenizer
from training.generation import Generator, prefixes, prompts
from training.generation.layout import bytes_of_token
from training.generation.prefixes import Prefixes
from training.generation.requests import Prompt, Request
from training.serving.engine import Engine, Failed, Job
from training.serving.memory import Budget, TooLargeError

pytestmark = pytest.mark.sampled(1, tests=4)

TOKENIZER = CharacterTokenizer("abcdefghijklmn")
CONFIG = DTransformerConfig(N_V=17, l_max=3000, L=2, H=2, d_e=8, d_mlp=12)
THETA = later(lambda: random_theta(CONFIG))
TEXT = np.random.default_rng(0).integers(14, size=2500)
GREEDY = {"tau": 0.0}


def request(length, l_gen=12, seed=0):
    return Request(TEXT[seed : seed + length], jax.random.key(seed), l_gen, GREEDY)


def joined(generator, read):
    """A batch of a prompt of 5 tokens that one of 40 joins after 3."""
    batch = generator.answer([request(5)])
    batch.extend(3)
    new = request(40, seed=1)
    batch.join([new], keep=[0, 1], read=read(generator, new) if read else None)
    return batch


def in_parts(generator, new):
    *_, read = prompts.in_parts(generator, new.tokens, 1)
    return read


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("kept", [None, 1 << 20])
@pytest.mark.parametrize("read", [None, in_parts])
def test_who_joins_gets_room_for_what_it_asked_for(kept, read):
    """As begun together, also after a kept prefix, and read in parts."""
    generator = Generator(THETA(), CONFIG, prefixes=kept and Prefixes(kept))
    together = generator.answer([request(5), request(40)])
    if kept:
        generator.answer([request(30, seed=1)])
    batch = joined(generator, read)
    shapes = [one._state.tokens.shape for one in (together, batch)]
    sizes = [sum(leaf.nbytes for leaf in jax.tree.leaves(one._state.caches)) for one in (together, batch)]
    assert shapes == [(2, 64), (2, 64)]
    assert sizes == 2 * [2 * 64 * bytes_of_token(THETA())]
    if kept:
        assert generator.prefixes.found >= 29
    batch.extend(15)
    for r, one in enumerate((request(5), request(40, seed=1))):
        expected = Generator(THETA(), CONFIG).answer([one])
        expected.extend(12)
        assert batch.tokens[r, batch.starts[r] :][:12].tolist() == expected.tokens[0].tolist()


def job(length, emit, l_gen=12, seed=0):
    how = {"sampling": GREEDY, "seed": 0, "number": 0, "stop": (), "ends": frozenset()}
    return Job(prompt=Prompt(TEXT[seed : seed + length].tolist()), l_gen=l_gen, emit=emit, **how)


def engine_of(memory=None, kept=None, rows=8):
    generator = Generator(THETA(), CONFIG, prefixes=kept and Prefixes(kept))
    return Engine(generator, TOKENIZER, rows=rows, queue=50, budget=Budget(generator, memory))


@pytest.mark.end_to_end
def test_what_does_not_fit_waits_and_what_never_fits_is_refused():
    """There is memory for a batch of four that grow to 256 tokens, while four are read; in the end all are done."""
    of_slot = bytes_of_token(THETA()) + 8 * 21
    memory = 4 * 256 * of_slot + 4 * 2 * 256 * bytes_of_token(THETA())
    engine, steps, most = engine_of(memory), queue.SimpleQueue(), []

    def emit(step):
        most.append((engine.running, engine._continuation._state and engine._continuation._state.tokens.shape))
        steps.put(step)

    with pytest.raises(TooLargeError, match=r"at most 1023 tokens together.* got 100 and 1500 tokens; ask for fewer"):
        engine.submit([job(100, emit, l_gen=1500)])
    engine.submit([job(20, emit, seed=i) for i in range(9)])
    engine.start()
    finished = 0
    while finished < 9:
        step = steps.get(timeout=60)
        assert not isinstance(step, Failed)
        finished += step.finish is not None
    engine.close()
    assert max(running for running, _ in most) == 4
    assert {shape for _, shape in most if shape} <= {(1, 256), (4, 256)}


def finished(engine, *jobs):
    """The tokens of jobs, `(length, l_gen, seed)` each, and the rows and slots that the batch has when they come."""
    steps, shapes = queue.SimpleQueue(), set()

    def emit(seed, step):
        shapes.add(engine._continuation._state.tokens.shape if engine._continuation._state else None)
        steps.put((seed, step))

    engine.submit([job(n, functools.partial(emit, seed), l_gen=l_gen, seed=seed) for n, l_gen, seed in jobs])
    tokens, left = {seed: [] for *_, seed in jobs}, len(jobs)
    while left:
        seed, step = steps.get(timeout=60)
        tokens[seed].append(step.token)
        left -= step.finish is not None
    return [*tokens.values()], shapes - {None}


@pytest.mark.end_to_end
def test_a_batch_has_fewer_rows_once_they_are_enough_for_a_while_and_gives_memory_back(monkeypatch):
    """Four of five end. Memory is given back after the first token in a new size, and when the batch ends."""
    given_back = []
    monkeypatch.setattr("training.serving.engine.give_back_memory", lambda: given_back.append(1))
    monkeypatch.setattr("training.serving.engine.FEWER", 20)
    engine, alone = engine_of(), Generator(THETA(), CONFIG).answer([request(20, l_gen=70)])
    alone.extend(70)
    engine.start()
    known = set()
    for _ in range(2):
        given_back.clear()
        tokens, shapes = finished(engine, (20, 70, 0), *((20, 3, seed) for seed in range(1, 5)))
        assert {(16, 256), (1, 256)} <= shapes
        assert tokens[0] == alone.tokens[0].tolist()
        n, known, deadline = len(shapes - known) + 1, known | shapes, time.monotonic() + 10
        while len(given_back) < n and time.monotonic() < deadline:  # the last time, after the last token is sent
            time.sleep(0.01)
        assert len(given_back) == n
    engine.close()


@pytest.fixture
def slow_parts(monkeypatch):
    """Parts of 64 tokens, which take longer together than any short request, by the token that each begins with."""
    monkeypatch.setattr(prefixes, "MANY", 64)
    read, parts = prefixes.read_more, []

    def slow(theta, caches, x, n, **how):
        parts.append(int(n))
        time.sleep(0.3)
        return read(theta, caches, x, n, **how)

    monkeypatch.setattr(prefixes, "read_more", slow)
    return parts


@pytest.mark.end_to_end
def test_a_long_prompt_is_read_between_steps_and_no_further_if_nobody_waits(slow_parts):
    """A short one begins and ends while a long one is read, which is abandoned then: its last parts are never read."""
    engine, long, short = engine_of(), queue.SimpleQueue(), queue.SimpleQueue()
    abandoned = job(2400, long.put)
    engine.submit([abandoned])
    engine.start()
    while len(slow_parts) < 2:
        time.sleep(0.01)
    engine.submit([job(9, short.put)])
    while short.get(timeout=60).finish is None:
        pass
    assert long.empty()
    assert len(slow_parts) < 2400 // 64
    abandoned.abandoned.set()
    deadline = time.monotonic() + 60
    while engine.running and time.monotonic() < deadline:
        time.sleep(0.01)
    n = len(slow_parts)
    time.sleep(0.3)
    assert (engine.running, len(slow_parts)) == (0, n)
    assert n < 2400 // 64
    engine.close()
    assert long.empty()


@pytest.mark.end_to_end
def test_layers_that_differ_need_what_each_of_them_keeps():
    """Two states and the keys in a window; a prompt that is to be read in parts is read at once, for a state."""
    config = DTransformerConfig(N_V=17, l_max=80, L=4, H=2, d_e=8, d_mlp=5, variant=HYBRID)
    generator = Generator(random_theta(config), config)
    state = prompts.read(generator, [TEXT[:20]], more=30).state
    budget, C = Budget(generator, 1 << 20), state.tokens.shape[1]
    kept = 8 * (3 * 7 + 5 * 2 * (4 + 4))
    assert sum(leaf.nbytes for leaf in jax.tree.leaves(state.caches)) == budget._of_caches(C, budget._limits) == kept
    batch = joined(generator, in_parts)
    batch.extend(15)
    alone = generator.answer([request(40, seed=1)])
    alone.extend(12)
    assert batch.tokens[1, batch.starts[1] :][:12].tolist() == alone.tokens[0].tolist()
