"""The tokenizers of GGUF files, token by token, against the libraries that define them."""

import io
import json
import random
import unicodedata
from pathlib import Path

import pytest
import regex
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from tests import interchange_cases as cases
from tests import real_weights
from training.data.chat import ChatTemplate
from training.data.records import DataError
from training.interchange import InterchangeError, gguf_tokenizer
from training.interchange.gguf_file import GGUFFile

sentencepiece = pytest.importorskip("sentencepiece", reason="not installed: pip install -e .[translation]")

_, transformers = cases.libraries()
ROOT = Path(__file__).resolve().parents[3]
PROSE = [path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
TEXTS = [
    *("", " ", "Hello world"),
    " leading,  two  spaces\n\n\nx\t\ty \r\n end ",
    "if x:\n            y = 1\n",
    "12345 2024-01-02 3.14159",
    "don't WE'LL I'm they'RE o'clock",
    "naïve café e\u0301 Ünïcödé ﬁ",
    "日本語テキスト 中文 한국어 العربية हिन्दी ไทย",
    "😀👩‍👩‍👧‍👦🇩🇪 ok",
    "def f(x):\n    return x**2  # comment\n\tif (a!=b){c+=1;}",
    "\u200b\u00a0nbsp\u3000",
    "\x01\x7f",
    *("a" * 99, " " * 37 + "x", "=" * 33, *PROSE[:3]),
]


def random_texts(n, *, seed=0):
    """Texts of characters from everywhere."""
    rng = random.Random(seed)
    ranges = [(32, 127), (1, 0x2000), (0x1F300, 0x1FAFF), (32, 33), (10, 11), (48, 58), (0x3000, 0xD7FF)]
    texts = ("".join(chr(rng.randrange(*rng.choice(ranges))) for _ in range(rng.randrange(1, 40))) for _ in range(n))
    # which characters are assigned depends on a library's version: those that all know
    return ["".join(c for c in text if unicodedata.category(c) != "Cn") for text in texts]


def plain_numerals(texts):
    """The same without ², ½, Ⅳ and their like, and with at most one space before a digit."""
    return [regex.sub(r"\s+(?=[0-9])", " ", regex.sub(r"(?![0-9])\p{N}", "", text)) for text in texts]


def read(fields, architecture="llama", N_V=None):
    metadata = {f"tokenizer.{key}": value for key, value in fields.items()}
    N_V = len(fields["ggml.tokens"]) if N_V is None else N_V
    return gguf_tokenizer.read(Path("model.gguf"), {"general.architecture": architecture, **metadata}, N_V)


@pytest.fixture(scope="module")
def bpe():
    """Vocabulary and merges of a byte-level BPE that was trained without splitting digits."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=1500, show_progress=False, initial_alphabet=alphabet)
    numbers = " ".join(str(n) for n in range(2000)) + " é e\u0301" * 99 + "\n        x = 1" * 99
    inner.train_from_iterator([*PROSE, numbers], trainer)
    vocabulary = inner.get_vocab()
    merges = [tuple(merge) for merge in json.loads(inner.to_str())["model"]["merges"]]
    return sorted(vocabulary, key=vocabulary.__getitem__), merges


def of_bytes(bpe, **fields):
    tokens, merges = bpe
    special = ["<|begin|>", "<|end|>", "<think>"]
    types = [NORMAL] * len(tokens) + [CONTROL, CONTROL, USER_DEFINED]
    given = {"ggml.model": "gpt2", "ggml.tokens": [*tokens, *special], "ggml.token_type": types}
    given |= {"ggml.merges": [" ".join(merge) for merge in merges], "ggml.bos_token_id": len(tokens)}
    given |= {"ggml.eos_token_id": len(tokens) + 1}
    return {name: value for name, value in {**given, **fields}.items() if value is not None}


def assert_same(texts, ours, theirs):
    for text in texts:
        assert ours(text) == theirs(text), repr(text[:80])


def test_gpt_2s_and_qwens_are_as_in_transformers(bpe):
    tokens, merges = bpe
    vocabulary = {token: i for i, token in enumerate(tokens)}
    texts = TEXTS + random_texts(300)
    for name, kind, architecture in (
        ("gpt-2", transformers.GPT2Tokenizer, "llama"),
        (None, transformers.GPT2Tokenizer, "llama"),
        ("qwen2", transformers.Qwen2Tokenizer, "qwen2"),
        (None, transformers.Qwen2Tokenizer, "qwen3"),
        ("qwen35", transformers.Qwen3_5Tokenizer, "qwen35"),
    ):
        expected = kind(vocab=vocabulary, merges=merges).backend_tokenizer
        ours = read(of_bytes(bpe, **{"ggml.pre": name}), architecture)
        assert_same(texts, ours.encode, lambda text, e=expected: e.encode(text, add_special_tokens=False).ids)


def test_gemma_4s_is_as_in_transformers():
    """SentencePiece's, whose merges the file lists."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(vocab_size=900, show_progress=False)
    inner.train_from_iterator([line for text in PROSE[:4] for line in text.splitlines()], trainer)
    merges = [tuple(merge) for merge in json.loads(inner.to_str())["model"]["merges"]]
    trained = inner.get_vocab()
    special, parts = ["<pad>", "<eos>", "<bos>", "<unk>"], [f"<0x{i:02X}>" for i in range(256)]
    tokens = [*special, *parts, *sorted(trained, key=trained.__getitem__)]
    types = [CONTROL] * 3 + [UNKNOWN] + [BYTE] * 256 + [NORMAL] * len(trained)
    vocabulary = {token: i for i, token in enumerate(tokens)}
    expected = transformers.GemmaTokenizer(vocab=vocabulary, merges=merges).backend_tokenizer
    fields = {"ggml.model": "gemma4", "ggml.tokens": tokens, "ggml.token_type": types, "ggml.bos_token_id": 2}
    ours = read(fields | {"ggml.merges": [" ".join(merge) for merge in merges], "ggml.add_bos_token": True}, "gemma4")
    texts = TEXTS + random_texts(300)
    assert_same(texts, ours.encode, lambda text: expected.encode(text, add_special_tokens=False).ids)
    assert_same(texts, lambda text: ours.decode(ours.encode(text)), lambda text: text)


PATTERNS = {  # as llama.cpp has them, or the models' own files
    "llama-bpe": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    "qwen2": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+",
    "smollm": r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+",
    "tekken": r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
CASES = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%]*[\p{Ll}\p{Lm}\p{Lo}\p{M}%]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
CASES += r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}%]+[\p{Ll}\p{Lm}\p{Lo}\p{M}%]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = CASES.replace("%", "") + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS |= {"gpt-4o": O200K, "llama4": O200K, "minimax-m2": O200K, "glm4": PATTERNS["llama-bpe"]}
PATTERNS["kimi-k2"] = r"[\p{Han}]+|" + CASES.replace("%", r"&&[^\p{Han}]")
PATTERNS["kimi-k2"] += r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {name: (pattern,) for name, pattern in PATTERNS.items()} | {
    "deepseek-v3": (
        r"\p{N}{1,3}",
        r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
        (
            r"[\x21-\x2f\x3a-\x40\x5b-\x60\x7b-\x7e][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
            r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        ),
    )
}


def split(text, patterns):
    """The words of a text: what a pattern matches, and what is left between matches, by the patterns in turn."""
    words = [text]
    for pattern in patterns:
        words = [part for word in words for part in regex.split(f"(?V1)({pattern})", word) if part]
    return words


@pytest.mark.parametrize("name", PATTERNS)
def test_words_are_split_by_the_models_own_pattern(name, bpe):
    inner = read(of_bytes(bpe, **{"ggml.pre": name})).inner
    for text in TEXTS + random_texts(300):
        words = inner.pre_tokenizer.pre_tokenize_str(text)
        found = [text[begin:end] for _, (begin, end) in words]
        assert found == split(text, PATTERNS[name]), repr(text[:80])


def test_llama_3_takes_a_word_that_is_a_token_whole(bpe):
    tokens, merges = bpe
    fields = of_bytes((["Ġzyxwv", *tokens], merges))
    assert read({**fields, "ggml.pre": "llama-bpe"}).encode("a zyxwv b")[1] == 0
    assert 0 not in read({**fields, "ggml.pre": "dbrx"}).encode("a zyxwv b")


def test_special_tokens_are_in_markup_only(bpe):
    tokenizer = read(of_bytes(bpe, **{"ggml.add_eos_token": True}))
    bos = tokenizer.bos_token
    assert (bos, tokenizer.end_tokens, tokenizer.framed([5])) == (len(bpe[0]), (bos + 1,), [5, bos + 1])
    assert read(of_bytes(bpe, **{"ggml.pre": "llama3"})).framed([5]) == [bos, 5]
    assert read(of_bytes(bpe, **{"ggml.pre": "llama3", "ggml.add_bos_token": False})).framed([5]) == [5]
    markup = "<|begin|>a<think>b<|end|>"
    a, b = (bpe[0].index(letter) for letter in "ab")
    assert tokenizer.encode_markup(markup) == [bos, a, bos + 2, b, bos + 1]
    assert {bos, bos + 1}.isdisjoint(tokenizer.encode(markup))
    assert bos + 2 in tokenizer.encode(markup)  # not special: part of any text
    assert tokenizer.decode([bos, a, bos + 2, b, bos + 1]) == "a<think>b"


def trained(tmp_path, **options):
    """A small SentencePiece model."""
    file = io.BytesIO()
    lines = iter([line for text in PROSE for line in text.splitlines() if line.strip()])
    given = {"model_type": "bpe", "vocab_size": 900, "byte_fallback": True, "normalization_rule_name": "identity"}
    given |= {"remove_extra_whitespaces": False, "minloglevel": 2, **options}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=lines, model_writer=file, **given)
    return sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())


def of_pieces(model, user_defined=(), **fields):
    """What llama.cpp's converter writes of a SentencePiece model."""

    def kind(i):
        tests = ((model.is_unknown, UNKNOWN), (model.is_control, CONTROL), (model.is_byte, BYTE))
        if model.id_to_piece(i) in user_defined:
            return USER_DEFINED
        return next((number for test, number in tests if test(i)), NORMAL)

    kinds = [kind(i) for i in range(model.vocab_size())]
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    tokens = [p.replace("▁", " ") if k == USER_DEFINED else p for p, k in zip(pieces, kinds, strict=True)]
    scores = [model.get_score(i) for i in range(model.vocab_size())]
    found = {"ggml.model": "llama", "ggml.tokens": tokens, "ggml.scores": scores, "ggml.token_type": kinds}
    return found | {"ggml.bos_token_id": 1, "ggml.eos_token_id": 2} | fields


@pytest.mark.parametrize("architecture", ["llama", "gemma"])
def test_sentencepiece_models_read_as_its_own_library_does(architecture, tmp_path):
    symbols = ["▁▁", "▁▁▁", "\n", "\n\n", "<start_of_turn>"] if architecture == "gemma" else []
    model = trained(tmp_path, add_dummy_prefix=architecture == "llama", user_defined_symbols=symbols)
    tokenizer = read(of_pieces(model, symbols), architecture)
    for text in [*TEXTS, *random_texts(500), "<0x41> <unk>", "x<start_of_turn>y\n\n\nz    w"]:
        ids = model.encode(text)
        assert tokenizer.encode(text) == ids, repr(text[:80])
        assert tokenizer._decode(ids) == model.decode(ids), repr(text[:80])
    assert tokenizer.framed([7]) == [1, 7]


def test_scores_that_leave_the_order_of_merges_open_are_refused(tmp_path):
    """Files that were made without tokenizer.model, of whose merges SentencePiece takes the one further left."""
    fields = of_pieces(trained(tmp_path))
    with pytest.raises(InterchangeError, match=r"scores: expected a different number for each of the \d+ tokens"):
        read(fields | {"ggml.scores": [-1000.0] * len(fields["ggml.scores"])})


def test_a_space_comes_before_every_part_of_a_text(tmp_path):
    model = trained(tmp_path)
    fields = of_pieces(model)
    a = model.encode("a")
    assert read(fields).encode_markup("<s>a</s>a") == [1, *a, 2, *a]
    assert read(fields | {"ggml.add_space_prefix": False}).encode_markup("<s> a</s> a") == [1, *a, 2, *a]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ggml.model": "bert"}, "tokenizer.ggml.model: expected gpt2 .*, got 'bert'"),
        ({"ggml.pre": "klingon"}, "tokenizer.ggml.pre: expected a supported way to split words, .*, got 'klingon'"),
        ({"ggml.tokens": ["a", "a"]}, "tokenizer.ggml.tokens: expected up to N_V = 2 different short strings"),
        ({"ggml.tokens": ["a", 3]}, "tokenizer.ggml.tokens: expected values of the type str"),
        ({"ggml.tokens": []}, "tokenizer.ggml.tokens: expected up to N_V"),
        ({"ggml.tokens": ["a" * 5000]}, "different short strings"),
        ({"ggml.tokens": "abc"}, "tokenizer.ggml.tokens: expected a value of the type list"),
        ({"ggml.token_type": [1]}, "tokenizer.ggml.token_type: expected 1503 values of the type int, got 1"),
        ({"ggml.merges": ["abc"]}, "tokenizer.ggml.merges: expected two tokens separated by a space"),
        ({"ggml.merges": ["no such"]}, "tokenizer.ggml.tokens: no tokenizer can be built"),
        ({"ggml.bos_token_id": "a"}, "tokenizer.ggml.bos_token_id: expected a value of the type int"),
        ({"ggml.add_bos_token": 1}, "tokenizer.ggml.add_bos_token: expected a value of the type bool"),
        ({"chat_template": 5}, "tokenizer.chat_template: expected a value of the type str"),
        ({"ggml.model": "llama", "ggml.scores": [1.0]}, "tokenizer.ggml.scores: expected 1503 values of the type fl"),
    ],
)
def test_a_damaged_tokenizer_is_refused(changes, message, bpe):
    with pytest.raises(InterchangeError, match=message) as caught:
        read(of_bytes(bpe, **changes))
    assert "\n" not in str(caught.value)


def test_more_tokens_than_the_models_are_refused(bpe):
    with pytest.raises(InterchangeError, match="up to N_V = 1000"):
        read(of_bytes(bpe), N_V=1000)
    assert read(of_bytes(bpe), N_V=2000).N_V == 2000


def test_what_is_called_an_end_ends_a_text_beside_the_one_that_is_named(bpe):
    """As in llama.cpp; a file with no end at all has none."""
    begin, end = len(bpe[0]), len(bpe[0]) + 1
    assert read(of_bytes(bpe, **{"ggml.eos_token_id": begin})).end_tokens == (begin, end)
    assert read(of_bytes(bpe)).end_tokens == (end,)


def test_a_file_without_a_tokenizer_has_none():
    assert gguf_tokenizer.read(Path("model.gguf"), {}, 5) is None


@pytest.mark.download
def test_mistrals_tokenizer_reads_as_sentencepiece_does():
    data = real_weights.member(real_weights.MISTRAL, "/tokenizer.model.v1")
    model = sentencepiece.SentencePieceProcessor(model_proto=data)
    tokenizer = read(of_pieces(model))
    for text in TEXTS + PROSE + random_texts(1000):
        assert tokenizer.encode(text) == model.encode(text), repr(text[:80])


@pytest.mark.download
def test_deepseeks_tokenizer_reads_as_its_own_file_does():
    text = real_weights.member(real_weights.DEEPSEEK, "/tokenizer.json").decode()
    state, theirs = json.loads(text), tokenizers.Tokenizer.from_str(text)
    added = {token["id"]: CONTROL if token["special"] else USER_DEFINED for token in state["added_tokens"]}
    tokens = [theirs.id_to_token(i) for i in range(theirs.get_vocab_size())]
    fields = of_bytes((tokens, [merge.split(" ") for merge in state["model"]["merges"]]))
    fields |= {"ggml.tokens": tokens, "ggml.token_type": [added.get(i, NORMAL) for i in range(len(tokens))]}
    ours = read({**fields, "ggml.pre": "deepseek-v3", "ggml.bos_token_id": 0, "ggml.eos_token_id": 1})
    assert gguf_tokenizer.steps_of(gguf_tokenizer.WORDS["deepseek-v3"]) == state["pre_tokenizer"]["pretokenizers"]
    texts = TEXTS + PROSE + random_texts(300)
    assert_same(texts, ours.encode, lambda text: theirs.encode(text, add_special_tokens=False).ids)


@pytest.mark.download
def test_smollms_tokenizer_reads_as_in_transformers(tmp_path):
    path = real_weights.smollm2(tmp_path)
    ours = read_file(path)
    theirs = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)

    def expected(text):
        return theirs.encode(text, add_special_tokens=False)

    def spelled(texts):
        """Those without a character that the tokenizer has no token for, which we refuse and transformers drops."""
        return [text for text in texts if all(map(expected, set(text)))]

    markup = ["<|im_start|>user\nhi<|im_end|>\n<|endoftext|> x <|im_start|>", "<|im_start|><|im_end|> <repo_name>"]
    assert_same(plain_numerals(spelled(TEXTS + PROSE + markup + random_texts(500))), ours.encode_markup, expected)
    with pytest.raises(DataError, match="would vanish"):
        ours.encode("\x16")
    for text in TEXTS + markup:
        assert theirs.decode(expected(text)) == ours._decode(ours.encode_markup(text))
    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    text = ChatTemplate.of(ours).render(conversation).text
    assert text == theirs.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    assert ours.encode_markup(text) == expected(text)
    assert len(expected(text)) == 37
    # "smollm" means that each numeral is a word by itself, as in llama.cpp, and as the vocabulary was made: it has no
    # token of a numeral and a space. From GGUF, transformers does not do so.
    for text in (" ½", "\n  3"):
        assert ours.encode(text) == ours.encode(text[:-1]) + ours.encode(text[-1]) != expected(text)
    theirs.backend_tokenizer.pre_tokenizer = ours.inner.pre_tokenizer
    assert_same(spelled(PROSE + random_texts(500, seed=1)), ours.encode_markup, expected)


def read_file(path):
    file = GGUFFile(path)
    return gguf_tokenizer.read(path, file.metadata, file.tensors["token_embd.weight"].shape[0])
