"""scripts/convert.py, and what the other scripts make of the directories that it writes."""

import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import d_hidden_state
from tests import interchange_cases as cases
from tests.run_cases import make_run
from training import commands
from training.data.tokenizers import build_tokenizer, load_tokenizer
from training.interchange import load_pretrained, tokenizer_files
from training.interchange.description import Model
from training.runs.trained_model import load_run

torch, transformers = cases.libraries()
TEXTS = ["the cat sat on the mat. the cat ran.\n", "the dog sat too; the end"]
PLAIN = {"d_e": 12, "H": 3, "l_max": 50, "dropout": 0.0}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    made = {kind: build_tokenizer(kind, TEXTS, N_V=280) for kind in ("bytes", "characters", "words", "bpe")}
    return {kind: make_run(root / kind, "d", tokenizer, **PLAIN) for kind, tokenizer in made.items()}


def test_a_run_opens_in_transformers_with_its_tokenizer(tmp_path, runs, printed):
    for kind, path in runs.items():
        out = tmp_path / kind
        printed("convert", path, out, "--to", "gpt2")
        run = load_run(path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(out)
        text = "the cat sat"
        tokens = [run.tokenizer.bos_token, *run.tokenizer.encode(text)]
        assert tokenizer(text)["input_ids"] == tokens, kind
        assert tokenizer.decode(tokens, skip_special_tokens=True) == text, kind
        assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (run.tokenizer.bos_token, run.tokenizer.eos_token)
        model = transformers.AutoModelForCausalLM.from_pretrained(out)
        x = np.array(tokens)
        hidden = d_hidden_state(jnp.asarray(x), run.theta)
        theirs = model(torch.tensor(x)[None]).logits[0]
        cases.assert_same(cases.column_logits(hidden, run.theta), theirs.detach(), "float32", kind)


@pytest.mark.parametrize("kind", ["bytes", "characters", "words", "bpe"])
def test_every_text_has_the_same_tokens_there(tmp_path, kind):
    ours = build_tokenizer(kind, TEXTS, N_V=280)
    model = Model("d", type("Config", (), {"l_max": 9, "N_V": ours.N_V}))
    tokenizer_files.write(tmp_path, ours, model)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    known = sorted(set("".join(TEXTS)))
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(known, size=n)) for n in range(1, 30)]
    if kind != "characters":
        texts += ["naïve façade — 日本\n\n\ttwo  words", "x\r\ny"]
    for text in texts:
        tokens = ours.encode(text)
        assert theirs(text)["input_ids"] == [ours.bos_token, *tokens], text
        assert kind == "words" or theirs.decode(tokens) == ours.decode(tokens) == text


@pytest.fixture(scope="module")
def converted(tmp_path_factory, runs):
    """A run, as a checkpoint, as a directory of ours again."""
    root = tmp_path_factory.mktemp("converted")
    assert commands.convert_main([str(runs["bpe"]), str(root / "out")]) == 0
    assert commands.convert_main([str(root / "out"), str(root / "back")]) == 0
    return root


def test_a_converted_model_is_evaluated_on_data_that_are_named(converted, called):
    status, out, err = called("evaluate", converted / "back")
    assert (status, out) == (2, "")
    assert err.startswith("evaluate.py: --data: expected the data to evaluate on, since ")


def test_there_and_back_is_the_same_run(converted, runs):
    before, after = load_run(runs["bpe"]), load_run(converted / "back")
    assert (before.config.d_e, before.config.tied, after.task) == (after.config.d_e, after.config.tied, "d")
    chex.assert_trees_all_equal(*map(jax.tree.leaves, (after.theta, before.theta)))
    a, b = before.tokenizer, after.tokenizer
    assert (a.N_V, a.bos_token, a.eos_token, a.mask_token) == (b.N_V, b.bos_token, b.eos_token, b.mask_token)
    assert b.framed(b.encode("the"), ends=False) == a.framed(a.encode("the"), ends=False)
    theta, _, tokenizer = load_pretrained(converted / "out")
    assert tokenizer is not None
    assert tokenizer.fingerprint() == b.fingerprint()
    assert load_tokenizer(converted / "back" / "tokenizer.json").fingerprint() == b.fingerprint()
    assert theta.W_e.shape == before.theta.W_e.shape


def test_a_model_without_a_tokenizer_reads_and_writes_numbers(tmp_path, called, printed):
    sizes = {"vocab_size": 29, "n_positions": 13, "n_embd": 6, "n_layer": 1, "n_head": 2}
    config = transformers.GPT2Config(**sizes, bos_token_id=1, eos_token_id=2)
    model = cases.randomized(torch, transformers.GPT2LMHeadModel(config))
    cases.saved(model, tmp_path / "in", "float32")
    printed("convert", tmp_path / "in", tmp_path / "out")
    out = printed("generate", tmp_path / "out", "--prompt", "3 1 4", "--l_gen", 5, "--tau", 0)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    theirs = model.generate(torch.tensor([[3, 1, 4]]), **options)[0, 3:].tolist()
    theirs = theirs[: theirs.index(2)] if 2 in theirs else theirs
    assert out.split() == [str(token) for token in theirs]
    status, _, error = called("generate", tmp_path / "out", "--prompt", "3 x")
    assert status == 2
    assert "'x' is not a token ID: the model came without a tokenizer, so give numbers below 29" in error


def test_a_sentence_encoder_embeds_texts(tmp_path, printed):
    sizes = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 7}
    config = transformers.BertConfig(vocab_size=29, max_position_embeddings=13, **sizes)
    model = cases.randomized(torch, transformers.BertModel(config))
    cases.saved(model, tmp_path / "in", "float32")
    printed("convert", tmp_path / "in", tmp_path / "out")
    out = printed("generate", tmp_path / "out", "--prompt", "3 1 4", "--json")
    e = model(torch.tensor([[3, 1, 4]])).last_hidden_state[0].mean(0)
    expected = (e / e.norm()).detach().numpy()
    np.testing.assert_allclose(json.loads(out)["answers"][0]["embedding"], expected, atol=1e-6)


def test_nothing_is_written_over(tmp_path, runs, called):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("")
    status, _, error = called("convert", runs["bytes"], tmp_path / "out")
    assert (status, [p.name for p in (tmp_path / "out").iterdir()]) == (2, ["precious"])
    assert "already exists; give another name, or delete it" in error
    status, _, error = called("convert", tmp_path / "none", tmp_path / "new")
    assert (status, (tmp_path / "new").exists()) == (2, False)
    assert error.startswith("convert.py: there is no directory")
