"""Token stores: what lies on disk is what the tokenizer gave, once, whole, or not at all."""

import concurrent.futures
import dataclasses
import errno
import fcntl
import functools
import os
import threading
import time

import numpy as np
import pytest

from tests.training_cases import token_store_of
from training.data import token_store
from training.data.batches import Batches, NextTokens
from training.data.records import Corpus, DataError, Document, Labeled, Pair
from training.data.token_store import token_dtype, tokenize
from training.data.tokenizers import ByteTokenizer, CharacterTokenizer, build_tokenizer

TEXTS = ["The first text.", "Ein zweiter, größerer.", "", "4"]


def corpus_of(train, validation, test=(), kind="text", fingerprint="f"):
    parts = {"train": train, "validation": validation, "test": list(test)}
    return Corpus(name="mine", kind=kind, fingerprint=fingerprint, **parts)


TEXT_CORPUS = corpus_of([Document(t, f"a:{i}") for i, t in enumerate(TEXTS)], [Document("held out")])


@pytest.mark.parametrize("batch", [1, 20, 1 << 20])
@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_a_store_holds_bos_tokens_eos(tmp_path, monkeypatch, kind, batch):
    monkeypatch.setattr(token_store, "BATCH_CHARACTERS", batch)
    tokenizer = build_tokenizer(kind, TEXTS, N_V=270)
    splits = tokenize(TEXT_CORPUS, tokenizer, cache_dir=tmp_path)
    expected = [[tokenizer.bos_token, *tokenizer.encode(t), tokenizer.eos_token] for t in TEXTS]
    assert [splits.train[i].tolist() for i in range(len(splits.train))] == expected
    assert splits.train.lengths.tolist() == [len(e) for e in expected]
    assert splits.train.n_tokens == sum(map(len, expected))
    assert splits.train.n_bytes == len("\n\n".join(TEXTS).encode())
    assert splits.train.tokens.dtype == np.uint16
    assert (len(splits.validation), len(splits.test), splits.test.n_tokens) == (1, 0, 0)
    assert (splits.validation.part, splits.validation.N_V) == ("validation", tokenizer.N_V)
    assert splits.train.fingerprint != splits.validation.fingerprint


@pytest.mark.parametrize(("kind", "exact"), [("bytes", True), ("words", False)])
def test_bits_per_byte_need_tokens_that_give_the_text_back(tmp_path, kind, exact):
    """A model that has one token for every unknown word would have them for nothing."""
    splits = tokenize(TEXT_CORPUS, build_tokenizer(kind, TEXTS, N_V=270), cache_dir=tmp_path)
    assert splits.validation.exact is exact
    data = Batches(NextTokens(splits.validation, l_max=4), batch_size=1)
    assert (data.tokens_per_byte is not None) is exact


def test_other_data_or_another_tokenizer_are_another_store(tmp_path):
    other = corpus_of([Document("x")], [Document("y")], fingerprint="g")
    characters = CharacterTokenizer(sorted(set("".join(TEXTS) + "held out")))
    of = ((TEXT_CORPUS, ByteTokenizer()), (other, ByteTokenizer()), (TEXT_CORPUS, characters))
    stores = [tokenize(*which, cache_dir=tmp_path) for which in of]
    assert len({s.train.fingerprint for s in stores}) == 3
    assert [s.train.n_tokens for s in stores] == [48, 3, 46]


def test_large_vocabularies_take_four_bytes():
    assert (token_dtype(1 << 16), token_dtype((1 << 16) + 1)) == (np.uint16, np.uint32)
    assert token_store_of([[0, 65536]], 65537).tokens.tolist() == [0, 65536]


def test_pairs_keep_their_order(tmp_path):
    pairs = [Pair("a", "bc"), Pair("def", "g")]
    splits = tokenize(corpus_of(pairs, pairs[:1], kind="pairs"), ByteTokenizer(), cache_dir=tmp_path)
    decode = ByteTokenizer().decode
    found = [(decode(splits.train.source[i]), decode(splits.train.target[i])) for i in range(2)]
    assert found == [("a", "bc"), ("def", "g")]
    assert splits.train.source.fingerprint == splits.train.target.fingerprint


def test_labels_are_numbered_in_order_of_their_names(tmp_path):
    train = [Labeled("spam", "x"), Labeled("ham", "y"), Labeled("spam", "z")]
    for _ in range(2):  # written, and read again
        splits = tokenize(corpus_of(train, train[1:], kind="labeled"), ByteTokenizer(), cache_dir=tmp_path)
        assert splits.train.names == splits.test.names == ("ham", "spam")
        assert (splits.train.labels.tolist(), splits.validation.labels.tolist()) == ([1, 0, 1], [0, 1])
        assert len(splits.test.labels) == 0


def test_a_label_that_training_lacks_is_named(tmp_path):
    train = [Labeled("a", "x"), Labeled("b", "y")]
    corpus = corpus_of(train, [Labeled("c", "z", "v.tsv:7")], kind="labeled")
    for share, advice in ((0.0, "give examples of it to train on"), (0.05, "all its examples are held out; give more")):
        says = rf"^v\.tsv:7: label 'c' does not occur in .* \({advice}.*\), whose labels are 'a', 'b'$"
        with pytest.raises(DataError, match=says):
            tokenize(dataclasses.replace(corpus, held_out=share), ByteTokenizer(), cache_dir=tmp_path)
    corpus = corpus_of(train[:1], train[:1], kind="labeled")
    with pytest.raises(DataError, match="mine has 1 label in its training data, expected 2 or more"):
        tokenize(corpus, ByteTokenizer(), cache_dir=tmp_path)


def test_a_character_out_of_the_vocabulary_is_named_with_its_place(tmp_path):
    tokenizer = CharacterTokenizer("abc")
    corpus = corpus_of([Document("abc", "a.txt:1"), Document("abød", "a.txt:9")], [Document("a", "b")])
    with pytest.raises(DataError, match=r"^a\.txt:9: character 'ø' \(U\+00F8\) is not among the 3 characters"):
        tokenize(corpus, tokenizer, cache_dir=tmp_path)
    assert not any((tmp_path / "tokens").iterdir())  # nothing half is left


@pytest.mark.parametrize(("train", "validation", "part"), [([], ["a"], "train"), (["a"], [], "validation")])
def test_a_part_without_records_is_said(tmp_path, train, validation, part):
    corpus = corpus_of([Document(t) for t in train], [Document(t) for t in validation])
    with pytest.raises(DataError, match=f"mine has no records for {part}"):
        tokenize(corpus, ByteTokenizer(), cache_dir=tmp_path)


@pytest.mark.parametrize("name", ["tokens.bin", "offsets.npy", "meta.json"])
@pytest.mark.parametrize("damage", ["cut", "gone", "garbage"])
def test_a_damaged_store_is_named(tmp_path, name, damage):
    tokenize(TEXT_CORPUS, ByteTokenizer(), cache_dir=tmp_path)
    (path,) = tmp_path.glob(f"tokens/*/train/0/{name}")
    if damage == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-2] if damage == "cut" else b"garbage")
    with pytest.raises(DataError, match=r"^the token cache .* is damaged \(.*\); delete that folder$"):
        tokenize(TEXT_CORPUS, ByteTokenizer(), cache_dir=tmp_path)


def test_a_cache_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "tokens").write_text("a file where a folder should be")
    with pytest.raises(DataError, match=r"^cannot write the token cache .*; name another cache directory$"):
        tokenize(TEXT_CORPUS, ByteTokenizer(), cache_dir=tmp_path)


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(token_store._Column, "append", full)
    with pytest.raises(DataError, match=r"^cannot write the token cache .*: No space left on device; name another"):
        tokenize(TEXT_CORPUS, ByteTokenizer(), cache_dir=tmp_path)
    assert not any((tmp_path / "tokens").iterdir())


@pytest.mark.parametrize("locks", [True, False])
def test_processes_may_tokenize_the_same_at_once(tmp_path, monkeypatch, locks):
    """One waits for the other; on a file system without locks, both write, and the first one's folder stays."""
    written, original, both = [], token_store._write, threading.Barrier(2, timeout=60)

    def write(directory, *arguments):
        written.append(directory)
        both.wait() if not locks else time.sleep(0.2)
        return original(directory, *arguments)

    def flock(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(token_store, "_write", write)
    if not locks:
        monkeypatch.setattr(fcntl, "flock", flock)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        once = functools.partial(tokenize, TEXT_CORPUS, ByteTokenizer(), cache_dir=tmp_path)
        found = [future.result().train.n_tokens for future in [pool.submit(once) for _ in range(2)]]
    assert (found, len(written)) == ([48, 48], 1 if locks else 2)
    assert len(list((tmp_path / "tokens").iterdir())) == 1
