"""Marian's SentencePiece, trained on a few sentences: token for token transformers'."""

import json
import sys

import numpy as np
import pytest

from tests import interchange_cases as cases
from training.data.tokenizers import load_tokenizer
from training.generation.text import Options, answerer_for
from training.interchange import load_model, load_pretrained, save_pretrained

torch, transformers = cases.libraries()
sentencepiece = pytest.importorskip("sentencepiece")
# transformers recommends a normalizer of punctuation, which it makes and never calls.
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

CORPUS = ["the cat sat on the mat", "a dog sat on the log", "the log and the cat", "dogs and cats"]
CORPUS += ["der Hund und die Katze"]
TEXTS = [
    "the cat sat",
    "  a dog, and  cats! ",
    ">>de<< the mat",
    "it's 3.5% of the “logs” & mats — well‐known",
    "Ünknöwn ж",
    "",
    "e-mail\u200bme <b>",
]
SIZES = {"d_model": 12, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 3}
SIZES |= {"decoder_attention_heads": 3, "encoder_ffn_dim": 7, "decoder_ffn_dim": 7, "max_position_embeddings": 60}


def pieces_of(path, texts, size):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(path), vocab_size=size, minloglevel=2, hard_vocab_limit=False
    )
    model = sentencepiece.SentencePieceProcessor(model_file=f"{path}.model")
    path.with_suffix(".model").rename(path.with_suffix(".spm"))
    path.with_suffix(".vocab").unlink()
    return [model.id_to_piece(i) for i in range(3, model.get_piece_size())]


def marian(path, *, separate):
    """A model whose IDs are in another order than SentencePiece's, and lack one of its pieces."""
    source, target = pieces_of(path / "source", CORPUS, 40), pieces_of(path / "target", [*CORPUS[::-1], "mat"], 36)
    of_source = source[::-1] if separate else sorted({*source, *target})
    vocabularies = {"vocab.json": ["</s>", "<unk>", *of_source, ">>de<<", "<pad>"]}
    vocabularies |= {"target_vocab.json": ["</s>", "<unk>", *target, "<pad>"]} if separate else {}
    for name, pieces in vocabularies.items():
        (path / name).write_text(json.dumps({piece: i for i, piece in enumerate(pieces) if piece != source[7]}))
    (path / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": separate}))
    N_V_z, N_V = (len([*vocabularies.values()][i]) for i in (0, -1))
    of_target = {"decoder_vocab_size": N_V, "share_encoder_decoder_embeddings": False} if separate else {}
    special = dict.fromkeys(("pad_token_id", "decoder_start_token_id"), N_V - 1)
    special |= {"eos_token_id": 0, "forced_eos_token_id": None}
    config = transformers.MarianConfig(**SIZES, vocab_size=N_V_z, **of_target, **special)
    cases.saved(cases.randomized(torch, transformers.MarianMTModel(config)), path, "float32")
    return transformers.MarianTokenizer.from_pretrained(path)


kinds = pytest.mark.parametrize("kind", ["marian", "marian-two"])


def made(kind, path):
    path.mkdir()
    return marian(path, separate=kind == "marian-two"), load_pretrained(path)


@kinds
def test_texts_become_the_tokens_of_transformers_and_back(tmp_path, kind):
    theirs, (_, config, ours) = made(kind, tmp_path / "theirs")
    for text in TEXTS:
        assert ours.framed(ours.encode(text)) == theirs(text)["input_ids"], text
    known = sorted(ours.target.values())
    assert known[-1] == config.N_V - 1
    rows = np.random.default_rng(0).choice(known, size=(20, 9)).tolist()
    for row in rows:
        assert ours.decode(row) == theirs.decode(row, skip_special_tokens=True), row


@kinds
def test_it_is_saved_with_a_run_and_written_for_transformers(tmp_path, kind):
    theirs, (theta, config, ours) = made(kind, tmp_path / "theirs")
    ours.save(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert again.fingerprint() == ours.fingerprint()
    save_pretrained(tmp_path / "out", theta, config, ours, to=kind.partition("-")[0])
    reopened = type(theirs).from_pretrained(tmp_path / "out")
    for text in TEXTS[:4]:
        assert again.encode(text) == ours.encode(text)
        assert reopened(text)["input_ids"] == theirs(text)["input_ids"]


@kinds
def test_a_text_is_translated_as_by_transformers(tmp_path, kind):
    theirs, _ = made(kind, tmp_path / "theirs")
    model = transformers.MarianMTModel.from_pretrained(tmp_path / "theirs")
    answerer = answerer_for(load_model(tmp_path / "theirs"), Options(l_max=9))
    for text in TEXTS[:2]:
        inputs = theirs(text, return_tensors="pt")
        rules = {"max_length": 9, "num_beams": 1, "do_sample": False, "forced_eos_token_id": None}
        rules |= {"bad_words_ids": None}
        expected = theirs.decode(model.generate(**inputs, **rules)[0], skip_special_tokens=True)
        assert answerer.answers([text])[0][0]["text"] == expected


@kinds
def test_a_damaged_tokenizer_is_refused(tmp_path, kind):
    made(kind, tmp_path / "theirs")
    file = tmp_path / "theirs" / "vocab.json"
    state = json.loads(file.read_text())
    del state["<unk>"]
    file.write_text(json.dumps(state))
    cases.assert_unreadable(tmp_path / "theirs", "vocabulary has no <unk>")


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("marian", "vocab.json", '{"<unk>": "1"}', r"vocab\.json: '<unk>' has the token ID '1', expected an integer"),
        ("marian-two", "vocab.json", '{"<unk>": 90}', r"'<unk>' has the token ID 90, expected an integer below \d\d$"),
        ("marian", "source.spm", b"", "a SentencePiece model is damaged: it is empty"),
        ("marian", "source.spm", b"\x0a\xff", "a SentencePiece model is damaged"),
    ],
)
def test_what_no_tokenizer_has_is_refused(tmp_path, kind, name, content, message):
    made(kind, tmp_path / "theirs")
    content = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "theirs" / name).write_bytes(content)
    cases.assert_unreadable(tmp_path / "theirs", message)


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    made("marian", tmp_path / "theirs")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    cases.assert_unreadable(tmp_path / "theirs", "needs sentencepiece: pip install sentencepiece")
