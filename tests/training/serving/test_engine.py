"""The engine: who arrives when gets what it gets alone, drawn in its own way."""

import queue

import numpy as np
import pytest

from tests import cases
from tests.run_cases import LETTERS
from training.generation import Generator, prompts
from training.generation.prefixes import read_in_parts
from training.generation.text import Continuer, Options
from training.serving import engine
from training.serving.engine import Engine, Failed, FullError, Job

PROMPTS = ["abc", "j", "fade .", "a b", "cc"]
EOS = LETTERS.eos_token
DRAWN = {"tau": 0.9, "top_p": 0.95, "repetition_penalty": 1.1, "eos": EOS}
ASKED = {  # prompt, most tokens, seed, how it is drawn, and after how many tokens of the first it arrives
    "long": ("abc", 55, 1, DRAWN, None),
    "late": (2 * "fade . cab add a b c d e f g h", 6, 5, DRAWN, 4),  # longer than l_max
    "more": ("j ", 7, 6, DRAWN | {"logit_bias": {3: 4.0}}, 4),
    "other": ("abc", 5, 0, {"tau": 0.8, "top_k": 4, "eos": EOS}, 30),
    "greedy": ("abc", 5, 0, {"tau": 0.0, "no_repeat_ngram_size": 2, "eos": EOS}, 30),
}


def engine_of(model, rows=4, **options):
    return Engine(Generator(model.theta, model.config, **options), model.tokenizer, rows=rows, queue=20)


def job_of(model, prompt, emit, **options):
    common = {"l_gen": 5, "sampling": {"tau": 0.0, "eos": EOS}, "seed": 0, "number": 0, "stop": ()}
    common |= {"ends": frozenset([EOS])} | options
    return Job(prompt=Continuer(model, Options()).prompt(prompt), emit=emit, **common)


def steps_of(model, **asked):
    """The steps of jobs that are submitted together, by their names."""
    of_model, done = engine_of(model, rows=8), queue.SimpleQueue()
    jobs = [job_of(model, emit=lambda step, name=name: done.put((name, step)), **how) for name, how in asked.items()]
    of_model.submit(jobs)
    of_model.start()
    found = {name: [] for name in asked}
    while not all(steps and steps[-1].finish for steps in found.values()):
        name, step = done.get(timeout=60)
        found[name].append(step)
    of_model.close()
    return found


def tokens_of(steps):
    return [step.token for step in steps]


def joins_of(of_model):
    """A list that gets the temperatures of all requests of a batch, whenever some join it."""
    found, batch = [], of_model._continuation
    join = batch.join

    def noting(*arguments, **options):
        join(*arguments, **options)
        found.append([request.sampling["tau"] for request in batch._requests])

    batch.join = noting
    return found


@pytest.mark.end_to_end
def test_a_batch_has_what_is_drawn_in_any_way(model):
    done, of_model = queue.SimpleQueue(), engine_of(model)
    begun = joins_of(of_model)
    half = {"tau": 0.5, "eos": EOS}
    jobs = [job_of(model, "abc", done.put, sampling=half) for _ in range(2)]
    jobs += [job_of(model, prompt, done.put) for prompt in PROMPTS]
    of_model.submit(jobs)
    with pytest.raises(FullError, match="at most 20 waiting continuations, got 7 and 14 more"):
        of_model.submit(14 * jobs[:1])
    assert of_model.waiting == 7
    jobs[1].abandoned.set()
    of_model.start()
    assert of_model.is_well
    finished = 0
    while finished < 6:
        finished += done.get(timeout=60).finish is not None
    of_model.close()
    assert (of_model.waiting, of_model.is_well) == (0, False)
    assert max(len(set(taus)) for taus in begun) == 2


@pytest.mark.end_to_end
def test_each_of_several_tokens_ends_a_text(model):
    how = {"prompt": "abc", "l_gen": 30, "sampling": {"tau": 0.9}}
    free = steps_of(model, free={**how, "ends": frozenset()})["free"]
    end = free[9].token
    first = tokens_of(free).index(end)
    steps = steps_of(model, ended={**how, "ends": frozenset([EOS, end])})["ended"]
    assert (tokens_of(steps), steps[-1].finish) == (tokens_of(free)[: first + 1], "stop")
    assert "".join(step.text for step in steps) == LETTERS.decode(tokens_of(free)[:first])


@pytest.mark.end_to_end
def test_prompts_that_are_the_same_are_read_once(model, monkeypatch):
    asked = {f"{i}": {"prompt": "j" if i == 5 else "abc", "number": i} for i in range(6)}
    for how in asked.values():
        how |= {"sampling": {"tau": 0.9, "eos": EOS}, "l_gen": 12}
    alone = {name: tokens_of(steps_of(model, one=how)["one"]) for name, how in asked.items()}
    read, original = [], engine.in_parts

    def noting(model, text, n):
        read.append(n)
        return original(model, text, n)

    monkeypatch.setattr(engine, "in_parts", noting)
    together = steps_of(model, **asked)
    assert read == [5, 1]
    assert {name: tokens_of(steps) for name, steps in together.items()} == alone
    assert len({tuple(tokens) for tokens in alone.values()}) == 6


def events_of(model, names, **options):
    """The steps of jobs with the names of these, in the order in which they come."""
    events, arriving = [], queue.SimpleQueue()
    of_model = engine_of(model, **options)

    def job(name):
        prompt, l_gen, seed, sampling, _ = ASKED[name]
        options = {"seed": seed, "sampling": sampling, "l_gen": l_gen}
        return job_of(model, prompt, lambda step: emit(name, step), **options)

    def emit(name, step):
        events.append((name, step))
        if name == names[0]:
            n = sum(of == name for of, _ in events)
            of_model.submit([job(late) for late in names[1:] if ASKED[late][-1] == n])
        arriving.put(step)

    of_model.submit([job(names[0])])
    of_model.start()
    finished = 0
    while finished < len(names):
        finished += arriving.get(timeout=60).finish is not None
    of_model.close()
    return events


@pytest.mark.end_to_end
def test_another_way_of_drawing_compiles_nothing(model):
    """Once requests of these sizes were drawn with penalties and without."""

    def asked(tau, **more):
        how = {"prompt": "abc", "sampling": {"tau": tau, "eos": EOS, **more}}
        return steps_of(model, one=how, two={**how, "number": 1})

    asked(0.0)
    asked(0.9, top_p=0.9, repetition_penalty=1.1)
    every = {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "no_repeat_ngram_size": 3}
    for how in ({"tau": 0.3}, {"tau": 1.5, "top_k": 3}, {"tau": 0.7, "top_p": 0.5}, {"tau": 1.1, "top_k": 5, **every}):
        assert cases.compilations(lambda how=how: asked(**how)) == []


@pytest.mark.end_to_end
def test_who_comes_late_joins_at_the_next_step_and_gets_what_it_gets_alone(model):
    """Whatever way it is drawn in; of those that come together, one prompt is read before each token."""
    events = events_of(model, [*ASKED])
    for name in ASKED:
        of_name = [step for of, step in events if of == name]
        alone = [step for _, step in events_of(model, [name])]
        assert tokens_of(of_name) == tokens_of(alone)
        assert "".join(step.text for step in of_name) == "".join(step.text for step in alone)
        np.testing.assert_allclose([step.log_p for step in of_name], [step.log_p for step in alone], rtol=1e-4)
    order = [name for name, _ in events]
    last = len(order) - 1 - order[::-1].index("long")
    assert order.count("long") > 30
    assert order[:8] == [*4 * ["long"], "long", "late", "long", "more"]  # the late one needs a new window
    assert max(i for i, name in enumerate(order) if name in ("late", "more")) < last - 15
    assert order.index("other") < last
    assert order.index("greedy") < last


@pytest.mark.end_to_end
def test_rows_that_nobody_reads_begin_no_windows(model, monkeypatch):
    """Two of four are copies of the first, which ends; they would be full before the second has all its tokens."""
    read, original = [], prompts.read
    monkeypatch.setattr(prompts, "read", lambda *given, **how: read.append(given) or original(*given, **how))
    free = {"sampling": {"tau": 0.0}, "ends": frozenset()}
    found = steps_of(model, short={"prompt": "abc", "l_gen": 2, **free}, long={"prompt": "j", "l_gen": 38, **free})
    assert (len(found["long"]), read) == (38, [])


def test_who_waits_when_it_closes_is_told(model):
    done, of_model = queue.SimpleQueue(), engine_of(model)
    of_model.submit([job_of(model, prompt, lambda step, i=i: done.put((i, step))) for i, prompt in enumerate(PROMPTS)])
    of_model.start()
    of_model.close()
    last = {}
    while not done.empty():
        index, step = done.get()
        last[index] = step
    assert set(last) == set(range(5))
    assert all(isinstance(step, Failed) or step.finish for step in last.values())


def test_a_prompt_that_cannot_be_read_fails_alone(model, monkeypatch):
    """Also if it is among others, which are read and answered after it."""

    def failing(of, text):
        if len(text) == 3:
            raise RuntimeError("no such thing")
        return read_in_parts(of, text)

    monkeypatch.setattr(prompts, "read_in_parts", failing)
    of_model, done = engine_of(model), queue.SimpleQueue()
    of_model.start()
    for _ in range(2):
        of_model.submit([job_of(model, prompt, done.put, l_gen=1) for prompt in ("ab", "abc")])
        steps = [done.get(timeout=60) for _ in range(2)]
        failed = [step.message for step in steps if isinstance(step, Failed)]
        assert failed == ["the continuation failed: no such thing"]
    assert (of_model.is_well, of_model.running) == (True, 0)
    of_model.close()
