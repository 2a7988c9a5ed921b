"""A SentencePiece model beside a checkpoint: its tokens, and their texts in context, as its own library has them."""

import io

import pytest

from training.generation.pieces import Ends, Pieces
from training.interchange import gguf_tokenizer
from training.interchange.errors import InterchangeError

CORPUS = ["The cat sat on the mat.", "the cats and the rats sat", "a cat, a rat and a hat"] * 20
TEXTS = ["The cat sat", " two  spaces ", "hat é 你好 🎉!", "a\nb", "cat"]


WORDS = ["The quick brown fox jumps over the lazy dog", "quickly jumping brown dogs, foxes over times"] * 30


def trained(path, corpus=CORPUS, **options):
    spm = pytest.importorskip("sentencepiece")
    model, how = io.BytesIO(), {"model_type": "bpe", "byte_fallback": True, "vocab_size": 300, **options}
    how |= {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "minloglevel": 2}
    spm.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=model, **how)
    (path / gguf_tokenizer.SENTENCEPIECE).write_bytes(model.getvalue())
    return spm.SentencePieceProcessor(model_proto=model.getvalue())


def read(path, N_V=400):
    return gguf_tokenizer.read_pieces(path, N_V)


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    return trained(path), read(path)


@pytest.mark.parametrize("text", TEXTS)
def test_tokens_and_their_texts_are_those_of_sentencepiece(both, text):
    theirs, ours = both
    ids = theirs.encode(text)
    assert ours.encode(text) == ids
    for i in range(len(ids) + 1):  # a prompt, and what continues it
        before = [ours.bos_token, *ids[:i]]
        known, whole = theirs.decode(ids[:i]).rstrip("\ufffd"), theirs.decode(ids)
        assert ours.continued(before, ids[i:]) == whole[len(known) :]
        pieces = Pieces(ours, before=before)
        shown = "".join(pieces.add(token) for token in ids[i:]) + pieces.rest()
        assert shown == whole[len(known) :]
    assert b"".join(map(ours.spelled, ids)).decode() == " " + text


def test_a_space_is_part_of_the_token_after_it_and_told_from_none(both):
    theirs, ours = both
    cat, spaced = theirs.encode("cat"), theirs.encode("a cat")[-1]
    assert ours.spelled(spaced).startswith(b" ")
    assert ours.decode([spaced]) == ours.decode([spaced]).lstrip()
    assert ours.continued(cat, [spaced]) == " " + ours.decode([spaced])


def test_stops_that_name_special_tokens_are_tokens(both):
    _, ours = both
    assert Ends.of(ours, ["</s>", "\n", "<s>"]) == Ends((ours.eos_token, ours.bos_token), ("\n",))


def test_another_kind_is_refused(tmp_path):
    trained(tmp_path, WORDS, model_type="unigram", byte_fallback=False, vocab_size=60, hard_vocab_limit=False)
    with pytest.raises(InterchangeError, match=r"expected byte pair encoding .* add the model's tokenizer.json"):
        read(tmp_path)
