"""Text that is streamed token by token is the text of all tokens."""

import io

import numpy as np
import pytest
import tokenizers as library
from tokenizers import decoders, models, pre_tokenizers

from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import (
    ByteTokenizer,
    CharacterTokenizer,
    LibraryTokenizer,
    NumberTokenizer,
    WordTokenizer,
    bert_tokenizer,
    build_tokenizer,
)
from training.data.translation_tokenizers import SentencePieceTokenizer
from training.generation.pieces import Pieces, pieces_of

TEXTS = ["The cat, the hat; it's 1€ ßé and 😀!", "  two  spaces\n\n\nand lines", '"so" said 日本語 the end.']
BYTES = "€€€€ 日本語日本語 éé 😀😀😀😀😀".encode()


def with_byte_fallback():
    """Llama 2's and Gemma's: spaces as ▁, the first one stripped, and bytes for all that is not in the vocabulary."""
    pieces = ["<unk>", "▁a", "b", "▁", "é", "▁▁", "c"] + [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    inner = library.Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    strip = decoders.Strip(" ", 1, 0)
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip])
    return LibraryTokenizer(inner)


def with_spaces_as_pieces():
    """T5's and XLNet's: spaces as ▁, those of the first piece dropped."""
    vocabulary = {piece: i for i, piece in enumerate(["<unk>", "▁a", "b", "▁", "▁▁", "c▁d"])}
    inner = library.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return LibraryTokenizer(inner)


def of_words(tmp_path):
    """BERT's."""
    (tmp_path / "vocab.txt").write_text("[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n##s\n.\nn\n'\nt\n##t\n日\n")
    return bert_tokenizer(tmp_path / "vocab.txt")


def of_sentencepiece(_):
    """Marian's."""
    sentencepiece = pytest.importorskip("sentencepiece")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS), model_writer=model, vocab_size=290, byte_fallback=True, minloglevel=2
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    vocabulary = {processor.id_to_piece(i): i for i in range(processor.get_piece_size())}
    special = SpecialTokens(len(vocabulary), eos=vocabulary["</s>"])
    models = model.getvalue(), model.getvalue()
    return SentencePieceTokenizer(*models, source=vocabulary, target=vocabulary, special=special)


KINDS = {
    "bytes": lambda _: ByteTokenizer(),
    "characters": lambda _: CharacterTokenizer(sorted(set("".join(TEXTS)))),
    "words": lambda _: WordTokenizer(["<unk>", " cat", "The", " ", "\n", ","]),
    "bpe": lambda _: build_tokenizer("bpe", TEXTS * 5, N_V=300),
    "byte fallback": lambda _: with_byte_fallback(),
    "metaspace": lambda _: with_spaces_as_pieces(),
    "wordpiece": of_words,
    "numbers": lambda _: NumberTokenizer(SpecialTokens(30, eos=29)),
    "sentencepiece": of_sentencepiece,
}


@pytest.fixture(params=KINDS)
def tokenizer(request, tmp_path):
    return KINDS[request.param](tmp_path)


def sequences(tokenizer):
    """Random tokens, in runs of few different ones, which no text would have."""
    generator = np.random.default_rng(0)
    for n_different in (1, 2, 3, 3, 5, 5, 8, 30, 300, 300):
        some = generator.integers(tokenizer.N_V, size=n_different)
        yield generator.choice(some, size=70).tolist()
    if isinstance(tokenizer, ByteTokenizer):
        yield list(BYTES)
    elif isinstance(tokenizer, SentencePieceTokenizer) or tokenizer.may_change(7):
        is_pieces = isinstance(tokenizer, SentencePieceTokenizer)
        token_of = tokenizer.source.get if is_pieces else tokenizer.inner.token_to_id
        tokens = [token_of(f"<0x{byte:02X}>") for byte in BYTES]
        yield [3] * 5 + tokens + [4, 3] + tokens[:8] + [5]


def test_the_pieces_join_to_the_text_of_all_tokens(tokenizer):
    for tokens in sequences(tokenizer):
        whole = tokenizer.decode(tokens)
        for given in (0, 3):
            pieces, text = Pieces(tokenizer, given=given), ""
            for token in tokens:
                text += pieces.add(token)
                assert whole[given:].startswith(text)
            assert text + pieces.rest() == whole[given:], tokens


def test_stops_end_the_text_where_the_text_of_all_tokens_has_them(tokenizer):
    generator = np.random.default_rng(1)
    for tokens in sequences(tokenizer):
        whole = tokenizer.decode(tokens)
        starts = generator.integers(max(1, len(whole) - 4), size=2)
        stops = [whole[start : start + n] or "never" for start, n in zip(starts, (1, 4), strict=True)]
        stops = [stop for stop in stops if "\ufffd" not in stop]  # may become another character
        pieces = Pieces(tokenizer, stops)
        text = pieces.all(tokens)
        n = next((n for n in range(71) if any(s in tokenizer.decode(tokens[:n]) for s in stops)), len(tokens))
        so_far = tokenizer.decode(tokens[:n])
        found = [so_far.index(stop) for stop in stops if stop in so_far]
        assert (text, pieces.stopped) == (so_far[: min(found, default=None)], bool(found)), (tokens, stops)
        assert pieces.tokens == tokens[:n]


def test_bytes_wait_until_it_is_certain_what_they_are_decoded_to():
    tokenizer = with_byte_fallback()
    a, b, byte = 1, 2, [7 + i for i in range(256)].__getitem__
    assert list(pieces_of([a, byte(0x41), byte(0xFF), b], Pieces(tokenizer), ())) == ["a", "", "", "\ufffd\ufffdb", ""]
    assert list(pieces_of([a, *map(byte, "€".encode()), b], Pieces(tokenizer), ())) == ["a", "", "", "", "€b", ""]
    assert list(pieces_of([a, byte(0xE2)], Pieces(tokenizer), ())) == ["a", "", "\ufffd"]
    stopped = Pieces(tokenizer, ["\n"])  # a stop does not wait
    assert [stopped.add(token) for token in (a, byte(0x0A))] == ["a", ""]
    assert stopped.stopped


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe", "byte fallback", "metaspace", "wordpiece"])
def test_a_token_costs_the_same_in_a_long_text(kind, tmp_path, monkeypatch):
    tokenizer = KINDS[kind](tmp_path)
    decoded, decode = [], tokenizer.decode
    monkeypatch.setattr(tokenizer, "decode", lambda ids: decoded.append(len(ids)) or decode(ids))
    generator = np.random.default_rng(2)
    few, many = (generator.integers(*ends, size=500) for ends in ((3, min(10, tokenizer.N_V)), (tokenizer.N_V,)))
    for tokens in (few, [5] * 500, many):
        pieces = Pieces(tokenizer, ["never seen"])
        for token in tokens:
            pieces.add(int(token))
        assert max(decoded) < 100
