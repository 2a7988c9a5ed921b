"""Batches against their definitions: every token once, nothing across borders, all from (seed, step).

The tokens of a store are all distinct, so that a token says where it comes from.
"""

import functools
import itertools
import threading
import time
from collections import Counter

import chex
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.training_cases import batched, token_store_of
from training.data.batches import (
    Batches,
    LabeledTexts,
    MaskedTokens,
    NextTokens,
    Noise,
    SequencePairs,
    pack,
    prefetched,
)
from training.data.mixtures import Mixture
from training.data.records import DataError
from training.data.token_store import LabeledStore, PairStore

LENGTHS = (2, 17, 5, 3, 11, 7, 2, 23, 5, 13)


def distinct_store(lengths=LENGTHS, part="train", start=0):
    ends = np.cumsum([start, *lengths])
    sequences = [range(a, b) for a, b in itertools.pairwise(ends)]
    return token_store_of(sequences, N_V=1000, part=part)


def sequences_of(store):
    return [store[i].tolist() for i in range(len(store))]


def rows(batches, name="x", length="length"):
    """The sequences of batches without their padding; the padding must be eos_token."""
    found = []
    for batch in batches:
        for x, n in zip(batch[name], batch[length], strict=True):
            assert (x[n:] == 999).all()
            found.append(x[:n].tolist())
    return found


def predicted(sequences):
    return Counter((a, b) for s in sequences for a, b in itertools.pairwise(s))


@pytest.mark.parametrize("l_max", [2, 5, 7, 100])
def test_chunks_are_pieces_of_documents_and_predict_every_token_once(l_max):
    store = distinct_store(part="validation")
    data = batched(NextTokens, store, l_max=l_max, batch_size=3)
    found = [row for row in rows(data.evaluation_batches()) if row]
    assert all(2 <= len(row) <= l_max for row in found)
    assert len(found) == data.n_examples
    expected = [s[i : i + l_max] for s in sequences_of(store) for i in range(0, len(s) - 1, l_max - 1)]
    assert found == expected
    assert predicted(found) == predicted(sequences_of(store))


@pytest.mark.parametrize("l_max", [2, 7, 88])
def test_windows_go_over_borders_and_predict_every_token_once(l_max):
    store = distinct_store()
    data = batched(NextTokens, store, l_max=l_max, batch_size=4, mode="windows")
    found = [row for row in rows(data.evaluation_batches()) if row]
    assert all(len(row) == l_max for row in found[:-1])
    assert predicted(found) == predicted([[t for s in sequences_of(store) for t in s]])


@pytest.mark.parametrize("l_max", [5, 13, 40])
def test_packed_rows_hold_the_same_chunks_apart(l_max):
    store = distinct_store()
    data = batched(NextTokens, store, l_max=l_max, batch_size=2, mode="packed")
    segments, targets = [], []
    for batch in data.evaluation_batches():
        for x, ids, mask in zip(*(batch[name] for name in ("x", "segment_ids", "loss_mask")), strict=True):
            n = np.count_nonzero(ids)
            assert (ids[n:] == 0).all()
            assert (x[n:] == 999).all()
            assert np.array_equal(np.unique(ids[:n]), np.arange(1, ids.max() + 1))
            for i in range(1, ids.max() + 1):
                segments.append(x[ids == i].tolist())
            targets += [(int(x[t]), int(x[t + 1])) for t in np.flatnonzero(mask)]
    chunks = batched(NextTokens, store, l_max=l_max, batch_size=2)
    assert sorted(segments) == sorted(row for row in rows(chunks.evaluation_batches()) if row)
    assert Counter(targets) == predicted(sequences_of(store))
    assert data.n_examples < chunks.n_examples or l_max == 5


@given(st.lists(st.integers(1, 11), max_size=60))
def test_packing_loses_nothing_and_overfills_nothing(lengths):
    lengths = np.array(lengths, np.int64)
    order, starts = pack(lengths, 11)
    assert sorted(order.tolist()) == list(range(len(lengths)))
    sums = [lengths[order[a:b]].sum() for a, b in itertools.pairwise(starts)]
    assert all(0 < s <= 11 for s in sums)
    # Best fit leaves no two rows that would fit into one.
    assert len(sums) < 2 or sum(sorted(sums)[:2]) > 11


def every_kind(seed=0, batch_size=4):
    store = distinct_store()
    labels = np.arange(len(store), dtype=np.int32) % 3
    keywords = {"l_max": 12, "batch_size": batch_size, "seed": seed}
    halves = [NextTokens(part, l_max=12) for part in (store, distinct_store(LENGTHS[::-1]))]
    noise = Noise(special=(997, 998, 999), N_V=1000, noise=0.3, deletion=0.0)
    return {
        "chunks": batched(NextTokens, store, **keywords),
        "windows": batched(NextTokens, store, mode="windows", **keywords),
        "packed": batched(NextTokens, store, mode="packed", **keywords),
        "paper": batched(MaskedTokens, store, **keywords),
        "bert": batched(MaskedTokens, store, rule="bert", **keywords),
        "pairs": batched(SequencePairs, PairStore(store, distinct_store(LENGTHS[::-1])), **keywords),
        "mixture": Batches(Mixture(halves, [3.0, 1.0]), batch_size=batch_size, seed=seed),
        "noisy": Batches(halves[0], batch_size=batch_size, seed=seed, noise=noise),
        "labeled": batched(LabeledTexts, LabeledStore(store, labels, ("a", "b", "c")), **keywords),
    }


NAMES = tuple(every_kind())


assert_equal = functools.partial(chex.assert_trees_all_equal, strict=True)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_has_its_batch_whatever_was_asked_before(name):
    data, again = every_kind()[name], every_kind()[name]
    expected = [data.batch(step) for step in range(7)]
    for step in (6, 2, 0):
        assert_equal(again.batch(step), expected[step])
    iterator = again.batches(3)
    for step in range(3, 7):
        assert_equal(next(iterator), expected[step])


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_the_same_whoever_asks_for_them(name):
    data = every_kind()[name]
    for whole, first, second in zip(
        [data.batch(2), *data.evaluation_batches()],
        [data.batch(2, rows=slice(0, 1)), *data.evaluation_batches(rows=slice(0, 1))],
        [data.batch(2, rows=slice(1, 4)), *data.evaluation_batches(rows=slice(1, 4))],
        strict=True,
    ):
        assert_equal({k: np.concatenate([first[k], second[k]]) for k in first}, whole)
        assert all(array.dtype in (bool, np.int32) and len(array) == 4 for array in whole.values())


def test_an_epoch_has_every_example_once_and_the_next_another_order():
    data = every_kind()["chunks"]
    n = data.n_examples
    order = [tuple(row) for row in rows(data.batch(step) for step in range(n))]  # four epochs of batches of 4
    everything = sorted(tuple(row) for row in rows(data.evaluation_batches()) if row)
    epochs = [order[i * n : (i + 1) * n] for i in range(4)]
    assert all(sorted(epoch) == everything for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_thread_makes_the_next_batches_and_raises_its_errors_here():
    made, threads = [], set()

    def make(step):
        if step == 7:
            raise DataError("damaged")
        made.append(step)
        threads.add(threading.current_thread())
        return {"step": step}

    batches = prefetched(make, 3)
    assert next(batches) == {"step": 3}
    deadline = time.monotonic() + 60
    while made != [3, 4, 5, 6] and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [batch["step"] for batch in itertools.islice(batches, 3)] == [4, 5, 6]
    with pytest.raises(DataError, match="damaged"):
        next(batches)
    (thread,) = threads
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_fingerprints_differ_by_kind_seed_mode_size_noise_and_data():
    kinds = [every_kind(), every_kind(seed=1), every_kind(batch_size=5)]
    found = [data.fingerprint for of in kinds for data in of.values()]
    noise = Noise(special=(997, 998, 999), N_V=1000, noise=0.2, deletion=0.0)
    found += [Batches(kinds[0]["noisy"].source, batch_size=4, seed=0, noise=noise).fingerprint]
    found += [batched(NextTokens, distinct_store(LENGTHS[::-1]), l_max=12, batch_size=4).fingerprint]
    found += [batched(NextTokens, distinct_store(), l_max=13, batch_size=4).fingerprint]
    found += [batched(MaskedTokens, distinct_store(), l_max=12, batch_size=4, p_mask=0.2).fingerprint]
    assert len(set(found)) == len(found)


def masked_store(n=400, length=50):
    """n sequences of bos, ordinary tokens and eos."""
    tokens = np.random.default_rng(0).integers(0, 97, (n, length - 2))
    return token_store_of([[98, *row, 99] for row in tokens.tolist()], N_V=100)


def test_the_papers_rule_masks_every_token_alike():
    data = batched(MaskedTokens, masked_store(), l_max=50, batch_size=400, p_mask=0.3)
    batch = data.batch(0)
    masked = batch["x_masked"] == 97
    assert np.array_equal(masked, batch["loss_mask"])
    assert np.array_equal(batch["x_masked"][~masked], batch["x"][~masked])
    sigma = np.sqrt(0.3 * 0.7 / masked.size)
    assert abs(masked.mean() - 0.3) < 5 * sigma
    for column in (0, 25, 49):  # bos and eos too
        assert abs(masked[:, column].mean() - 0.3) < 5 * np.sqrt(0.3 * 0.7 / 400)
    assert (masked != (data.batch(1)["x_masked"] == 97)).any()


def test_diffusion_masks_each_sequence_with_a_probability_of_its_own_and_divides_by_it():
    batch = batched(MaskedTokens, masked_store(), l_max=50, batch_size=400, rule="diffusion").batch(0)
    some = batch["loss_mask"].any(axis=1)
    masked, weights = batch["x_masked"][some] == 97, batch["loss_mask"][some]
    p = 1 / weights.max(axis=1)
    np.testing.assert_allclose(weights, masked / p[:, None])
    assert (np.abs(masked.mean(axis=1) - p) < 5 * np.sqrt(p * (1 - p) / 50) + 1e-6).all()
    assert abs(masked.sum() / (400 * 50) - 0.5) < 5 * np.sqrt((1 / 12 + 1 / 6 / 50) / 400)  # of u, and of bits given u
    assert some.mean() > 0.9
    assert abs(batch["loss_mask"].mean() - 1) < 0.1


def test_berts_rule_masks_80_changes_10_keeps_10_percent():
    batch = batched(MaskedTokens, masked_store(), l_max=50, batch_size=400, rule="bert").batch(0)
    x, x_masked, chosen = batch["x"], batch["x_masked"], batch["loss_mask"]
    assert not chosen[:, [0, -1]].any()
    assert np.array_equal(x_masked[~chosen], x[~chosen])
    n = np.count_nonzero(chosen)
    assert abs(n / (400 * 48) - 0.15) < 5 * np.sqrt(0.15 * 0.85 / (400 * 48))
    for share, found in [
        (0.8, x_masked[chosen] == 97),
        (0.1 * 96 / 97, (x_masked[chosen] != 97) & (x_masked[chosen] != x[chosen])),  # 1 in 97 draws itself
        (0.1 + 0.1 / 97, x_masked[chosen] == x[chosen]),
    ]:
        assert abs(found.mean() - share) < 5 * np.sqrt(share * (1 - share) / n)
    assert x_masked.max() == 99
    random = x_masked[chosen & (x_masked != x) & (x_masked != 97)]
    assert len(np.unique(random)) > 70


def test_a_sample_of_held_out_data_is_fixed_and_drawn_from_all():
    """Packed rows are sorted by the lengths of their documents: the first ones have only long ones."""
    lengths = np.cumsum([0, *np.random.default_rng(0).integers(2, 60, size=900)])
    documents = [range(a, b) for a, b in itertools.pairwise(lengths)]
    store = token_store_of(documents, N_V=100_000, part="validation")
    data = batched(NextTokens, store, l_max=60, batch_size=4, mode="packed")
    sample, again = (list(data.evaluation_batches(sample=16)) for _ in range(2))
    other = batched(NextTokens, store, l_max=60, batch_size=4, mode="packed", seed=7)
    chex.assert_trees_all_equal(sample, again, list(other.evaluation_batches(sample=16)))
    parts = [list(data.evaluation_batches(rows=slice(a, b), sample=16)) for a, b in ((0, 1), (1, 4))]
    joined = [{name: np.concatenate([a[name], b[name]]) for name in a} for a, b in zip(*parts, strict=True)]
    chex.assert_trees_all_equal(joined, sample)

    def in_row(batches):
        return np.concatenate([batch["segment_ids"].max(axis=1) for batch in batches])

    everything = list(data.evaluation_batches())
    places = {row.tobytes(): i for i, row in enumerate(np.concatenate([batch["x"] for batch in everything]))}
    drawn = np.array([places[row.tobytes()] for batch in sample for row in batch["x"]])
    assert len(set(drawn)) == 64 < data.n_examples
    n = data.n_examples
    assert abs(drawn.mean() - n / 2) < 4 * n / np.sqrt(12 * 64)  # of a uniform draw, four deviations
    assert abs(in_row(sample).mean() - in_row(everything).mean()) < 0.15
    for size in (0, data.n_steps, data.n_steps + 1):
        chex.assert_trees_all_equal(list(data.evaluation_batches(sample=size)), everything)


def test_pairs_stay_together_and_long_ones_are_left_out():
    source, target = distinct_store([3, 9, 4, 5, 8]), distinct_store([4, 3, 9, 5, 8], start=500)
    data = batched(SequencePairs, PairStore(source, target), l_max=8, batch_size=2)
    assert (data.n_examples, data.source.n_too_long) == (3, 2)
    batches = list(data.evaluation_batches())
    kept = [0, 3, 4]
    assert rows(batches, "z", "z_length") == [*(source[i].tolist() for i in kept), []]
    assert rows(batches, "x", "x_length") == [*(target[i].tolist() for i in kept), []]
    for batch in (data.batch(step) for step in range(6)):
        for z, x in zip(batch["z"], batch["x"], strict=True):
            assert (int(z[0]), int(x[0])) in {(0, 500), (16, 516), (21, 521)}


def test_labeled_texts_are_cut_to_l_max_with_eos():
    store = token_store_of([[8, 1, 2, 3, 9], [8, 4, 9], [8, 9]], N_V=10)
    data = batched(LabeledTexts, LabeledStore(store, np.array([1, 0, 1], np.int32), ("a", "b")), l_max=4, batch_size=2)
    assert data.source.n_too_long == 1
    first, second = data.evaluation_batches()
    assert (first["x"].tolist(), first["length"].tolist()) == ([[8, 1, 2, 9], [8, 4, 9, 9]], [4, 3])
    assert (first["label"].tolist(), second["x"].tolist()) == ([1, 0], [[8, 9, 9, 9], [9, 9, 9, 9]])
    assert (second["length"].tolist(), second["label"].tolist()) == ([2, 0], [1, -1])


STORE = distinct_store()
LONG = PairStore(distinct_store([6, 9]), distinct_store([9, 7]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NextTokens(STORE, l_max=1), "l_max: expected at least 2, a token"),
        (lambda: batched(NextTokens, STORE, l_max=5, batch_size=0), "batch_size: expected at least 1, got 0"),
        (lambda: batched(NextTokens, STORE, l_max=5, batch_size=1, seed=1 << 32), "seed: expected .*, got 4294967296"),
        (lambda: NextTokens(STORE, l_max=5, mode="x"), "there is no mode 'x'; choose chunks, windows"),
        (lambda: NextTokens(STORE, l_max=89), "training data have 88 tokens, fewer than one sequence of l_max = 89"),
        (lambda: MaskedTokens(STORE, l_max=5, rule="x"), "there is no masking rule 'x'; choose paper"),
        (lambda: MaskedTokens(STORE, l_max=5, p_mask=1.0), "p_mask: expected a probability between 0 and 1, got 1.0"),
        (
            lambda: SequencePairs(LONG, l_max=5),
            "none of the 2 train pairs fits into l_max = 5 tokens, special tokens inc",
        ),
    ],
)
def test_what_cannot_be_is_said(make, message):
    with pytest.raises(DataError, match=message):
        make()
