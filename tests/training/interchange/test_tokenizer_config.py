"""The token IDs of a checkpoint's tokenizer are those of transformers, whatever tokenizer_config.json asks for."""

import json

import pytest
import tokenizers as library
from tokenizers import models

from algorithms import BERT, GPT2, DTransformerConfig, EDTransformerConfig, ETransformerConfig
from tests import interchange_cases as cases
from tests.cases import random_theta
from training.interchange import InterchangeError, load_model, save_pretrained
from training.interchange.encoder_decoder import VARIANTS

torch, transformers = cases.libraries()

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "Caf", "caf", "cafe", "café", "Café", "é", "e"]
PIECES += ["##é", "##e", "中", "国", "中国", "##国", "!", "cat", "Cat", "##s", "[NEW]"]
NEW = {"__type": "AddedToken", "content": "[NEW]", "lstrip": True}
TEXTS = ["The Café cafés", "the café!", "中国 cats", "Cat CAT cats", "a [NEW] cat", "中国中"]


def encoder(path, config, *, as_json):
    """A checkpoint of BERT's with a tokenizer, as the given tokenizer_config.json, or none, describes it."""
    sizes = ETransformerConfig(N_V=40, l_max=9, L=1, H=1, d_e=2, d_mlp=3, variant=BERT)
    save_pretrained(path, random_theta(sizes), sizes)
    (path / "vocab.txt").write_text("\n".join(PIECES) + "\n", "utf-8")
    if as_json:
        tokenizer = transformers.BertTokenizer(str(path / "vocab.txt"), do_lower_case=False)
        tokenizer.backend_tokenizer.save(str(path / "tokenizer.json"))
        (path / "vocab.txt").unlink()
    (path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    return path


def assert_same_ids(path, texts, **options):
    ours = load_model(path).tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(path, **options)
    for text in texts:
        assert ours.framed(ours.encode(text)) == theirs(text, split_special_tokens=True)["input_ids"], text
        assert ours.framed(ours.encode_markup(text)) == theirs(text)["input_ids"], text
    return theirs


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {"do_lower_case": False},
        {"do_lower_case": True},
        {"do_lower_case": True, "strip_accents": False},
        {"do_lower_case": False, "strip_accents": True},
        {"do_lower_case": False, "tokenize_chinese_chars": False},
        {"model_max_length": 9},
        {"tokenizer_class": "BertTokenizerFast", "do_lower_case": False},
        {"do_lower_case": False, "added_tokens_decoder": {"23": {"content": "[NEW]", "special": False}}},
        {"do_lower_case": False, "added_tokens_decoder": {"24": {"content": "sCa", "special": False}}},
        {"do_lower_case": False, "bos_token": "[BEGIN]", "eos_token": NEW},
        {"do_lower_case": False, "additional_special_tokens": ["[ONE]", "cat"], "pad_token": "[PAD]"},
        {"do_lower_case": False, "extra_special_tokens": ["[ONE]", "[TWO]"], "additional_special_tokens": ["cat"]},
    ],
)
def test_berts_settings_are_heeded(tmp_path, config, as_json):
    more = "catsCat", "the [BEGIN]e [NEW]cat[ONE] [TWO]cats"
    assert_same_ids(encoder(tmp_path, config, as_json=as_json), [*TEXTS, *more])


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"add_prefix_space": True},
        {"add_bos_token": True, "bos_token": "<|endoftext|>"},
        {"tokenizer_class": "GPT2TokenizerFast", "add_prefix_space": True},
        {"add_bos_token": True, "add_eos_token": True},
    ],
)
def test_gpt2s_settings_are_heeded(tmp_path, config, as_json):
    sizes = DTransformerConfig(N_V=300, l_max=9, L=1, H=1, d_e=2, d_mlp=3, variant=GPT2)
    save_pretrained(tmp_path, random_theta(sizes), sizes)
    cases.change_config(tmp_path, bos_token_id=0, eos_token_id=0)
    trained = library.Tokenizer(models.BPE())
    trained.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    options = {"vocab_size": 270, "special_tokens": ["<|endoftext|>"], "show_progress": False}
    trainer = library.trainers.BpeTrainer(initial_alphabet=alphabet, **options)
    trained.train_from_iterator([" the cat the cat the"] * 9, trainer)
    trained.model.save(str(tmp_path))
    if as_json:
        trained.save(str(tmp_path / "tokenizer.json"))
        for name in ("vocab.json", "merges.txt"):
            (tmp_path / name).unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")
    ours, theirs = load_model(tmp_path).tokenizer, transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in ("the cat", " the cat", "cat"):
        ids = theirs(text)["input_ids"]
        assert ours.framed(ours.encode(text)) == ids, text
    begins = ours.framed(ours.encode("cat"))[0] == ours.bos_token
    assert begins == (config.get("add_bos_token", False) and not as_json)


def test_whatever_any_file_says_to_end_a_text_ends_it(tmp_path):
    """config.json names one token, generation_config.json two, and tokenizer_config.json another by its text."""
    sizes = DTransformerConfig(N_V=300, l_max=9, L=1, H=1, d_e=2, d_mlp=3, variant=GPT2)
    save_pretrained(tmp_path, random_theta(sizes), sizes)
    trained = library.Tokenizer(models.BPE({text: i for i, text in enumerate("abcd")}, []))
    trained.add_special_tokens(["<|im_end|>"])
    trained.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}), "utf-8")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}), "utf-8")
    cases.change_config(tmp_path, bos_token_id=0, eos_token_id=1)
    assert load_model(tmp_path).tokenizer.end_tokens == (1, 2, 4)


def test_the_vocabulary_and_merges_of_a_bart_are_read(tmp_path):
    sizes = EDTransformerConfig(N_V=300, l_max=9, L_enc=1, L_dec=1, H=1, d_e=2, d_mlp=3, variant=VARIANTS["bart"])
    save_pretrained(tmp_path, random_theta(sizes), sizes, to="bart")
    alphabet = sorted(library.pre_tokenizers.ByteLevel.alphabet())
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet, "ca", "cat"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}), "utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\nc a\nca t\n", "utf-8")
    (tmp_path / "tokenizer_config.json").write_text("{}", "utf-8")
    cases.change_config(tmp_path, bos_token_id=0, eos_token_id=2, pad_token_id=1, decoder_start_token_id=2)
    assert_same_ids(tmp_path, ["cat", " a cat", "the"])


def test_what_cannot_be_heeded_is_refused(tmp_path):
    added = {"9": {"content": "[NEW]"}}
    for i, (config, message) in enumerate(
        (
            ({"do_lower_case": "no"}, "do_lower_case: expected true or false, got 'no'"),
            ({"added_tokens_decoder": added}, r"the added token '\[NEW\]': expected the ID 9, got 23"),
            ({"added_tokens_decoder": {"nine": added["9"]}}, "expected a token ID, got 'nine'"),
            ({"added_tokens_decoder": {"9": 1}}, "expected a token's content, got 1"),
        )
    ):
        with pytest.raises(InterchangeError, match=message):
            load_model(encoder(tmp_path / str(i), config, as_json=False))
