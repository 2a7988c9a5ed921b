"""What is wrong with a checkpoint is said in one sentence, all at once, and nothing is written."""

import dataclasses
import errno
import os
import pickle
import re
import shutil
import sys
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from algorithms import (
    BERT,
    DEEPSEEK,
    GPT2,
    GPT_NEO,
    LLAMA,
    PAPER,
    VASWANI,
    DTransformerConfig,
    EDTransformerConfig,
    ETransformerConfig,
)
from algorithms.lines import Unembedding
from tests.algorithms.test_layers import GATED
from tests.cases import random_theta
from tests.interchange_cases import change_config, tensors_of
from tests.run_cases import files_end_at
from tests.training.runs.test_directory import full_disk
from training.generation.text import Options, answerer_for
from training.interchange import InterchangeError, convert, load_model, load_pretrained, save_pretrained
from training.interchange.architectures import ARCHITECTURES
from training.interchange.encoder_decoder import VARIANTS
from training.interchange.unsupported import NEEDS
from training.runs.trained_model import load_run
from training.tasks.classify import ClassifierParams

SIZES = {"N_V": 17, "l_max": 5, "H": 2, "d_e": 6, "d_mlp": 7}
CONFIG = DTransformerConfig(L=1, variant=GPT2, **SIZES)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "in"
    save_pretrained(path, random_theta(CONFIG), CONFIG)
    return path


@pytest.fixture
def path(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "in")


def refused(path, tmp_path):
    """The message, which is a sentence, after which nothing new is there."""
    with pytest.raises(InterchangeError) as raised:
        convert(path, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_all_that_is_wrong_with_the_tensors_is_named_at_once(path, tmp_path):
    tensors = tensors_of(path)
    del tensors["transformer.ln_f.weight"], tensors["transformer.h.0.mlp.c_fc.bias"]
    tensors |= {"score.weight": np.ones(3), "transformer.wpe.weight": np.ones((4, 6))}
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    assert refused(path, tmp_path).endswith(
        "are not those of the model: missing: transformer.h.0.mlp.c_fc.bias, transformer.ln_f.weight; not part of the "
        "model that config.json describes: score.weight; of another shape than config.json says: "
        "transformer.wpe.weight [4, 6] instead of [5, 6]"
    )


def test_a_config_that_contradicts_the_tensors_is_refused(path, tmp_path):
    change_config(path, n_embd=8, vocab_size=18)
    message = refused(path, tmp_path)
    assert "transformer.wte.weight [17, 6] instead of [18, 8]" in message
    assert re.search(r"config.json says: 1\d, such as transformer.wte.weight", message)
    assert message.count(" instead of ") == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_head": 4}, "d_e = 6 is not a multiple of H = 4"),
        ({"n_head": "two"}, "n_head: expected an integer of at least 1 and less than 2^31, got 'two'"),
        ({"vocab_size": 10**40}, "vocab_size: expected an integer of at least 1 and less than 2^31, got 1000"),
        ({"n_layer": 2}, "holds, got 2"),
        ({"layer_norm_epsilon": -1}, "layer_norm_epsilon: expected a number of at least 0, got -1"),
        ({"layer_norm_epsilon": float("inf")}, "layer_norm_epsilon: expected a number of at least 0, got inf"),
        ({"layer_norm_epsilon": 10**400}, "layer_norm_epsilon: expected a number of at least 0, got 1000"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings: expected true or false, got 1"),
        ({"activation_function": ["gelu"]}, "the activation ['gelu']"),
        (
            {"activation_function": "mish", "scale_attn_weights": False},
            "scores that are not divided by √d_attn (scale_attn_weights = False), the activation 'mish'",
        ),
        ({"model_type": "mamba"}, "is a mamba, which needs Mamba's first recurrence, with a rate for each row"),
        ({"model_type": "xlnet"}, "is a xlnet, which needs a memory of earlier segments, and two-stream attention"),
        (
            {"model_type": "new"},
            "modernbert-decoder, embedding_gemma, llada, bart, marian, t5, torch.nn.Transformer, got 'n",
        ),
        ({"model_type": ["gpt2"]}, "embedding_gemma, llada, bart, marian, t5, torch.nn.Transformer, got ["),
        ({"model_type": None}, "t5, torch.nn.Transformer, got none; add it"),
    ],
)
def test_what_is_not_supported_is_refused(path, tmp_path, changed, message):
    change_config(path, **changed)
    assert message in refused(path, tmp_path)


def test_the_documents_name_the_missing_line_of_refused_models():
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text("utf-8").partition("### What does not")[2]
    rows = re.findall(r"^\| (`.*`) \| (.*) \|$", page.partition("\n## ")[0], re.MULTILINE)
    said = {kind: need for kinds, need in rows if need != "missing line" for kind in re.findall(r"`(\S+)`", kinds)}
    assert said == NEEDS
    assert not said.keys() & ARCHITECTURES.keys()


def test_truncated_weights_are_refused(path, tmp_path):
    whole = (path / "model.safetensors").read_bytes()
    for damaged in (whole[:-5], whole[:40], b"", b"not safetensors"):
        (path / "model.safetensors").write_bytes(damaged)
        assert "is damaged or not a safetensors file" in refused(path, tmp_path)


def words(n):
    """A tokenizer of n tokens."""
    return tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(n)})).to_str()


NESTED, INDEX = "[" * 200_000, "model.safetensors.index.json"
FILES = [  # their contents, None of one that is removed, and the message
    ({"model.safetensors": None}, "holds no weights: expected model.safetensors or pytorch_model.bin"),
    ({"model.safetensors": None, INDEX: "[]"}, "cannot be read"),
    ({"model.safetensors": None, INDEX: NESTED}, INDEX),
    (
        {"model.safetensors": None, INDEX: '{"weight_map": {"a": "../in/config.json"}}'},
        "names files that are not beside",
    ),
    ({"model.safetensors": None, INDEX: '{"weight_map": {"a": "none"}}'}, "names files that are not beside it: none"),
    ({"config.json": "{"}, "config.json: expected a JSON object"),
    ({"config.json": None}, "cannot read"),
    *(({f"{name}.json": NESTED}, f"{name}.json") for name in ("config", "tokenizer", "generation_config")),
    ({"tokenizer.json": words(18)}, "the tokenizer has 18 tokens, but the model only N_V = 17"),
    ({"tokenizer.json": "{"}, "is not a tokenizer that can be read"),
    (
        {"tokenizer.json": words(1), "target_tokenizer.json": "{}"},
        "target_tokenizer.json is not a tokenizer that can be",
    ),
    (
        {"tokenizer.json": words(1), "tokenizer_config.json": '{"chat_template": [{"name": ["a"], "template": 3}]}'},
        "chat_template: expected a string, or several with one named default, got 3",
    ),
]


@pytest.mark.parametrize(("files", "message"), FILES)
def test_damaged_and_missing_files_are_refused(path, tmp_path, files, message):
    for name, content in files.items():
        (path / name).unlink(missing_ok=True) if content is None else (path / name).write_text(content)
    assert message in refused(path, tmp_path)


def test_a_tensor_of_another_kind_is_refused(path, tmp_path):
    tensors = tensors_of(path) | {"transformer.ln_f.bias": np.arange(6)}
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    assert "transformer.ln_f.bias has the type int64, expected floating-point numbers" in refused(path, tmp_path)


def test_the_wrong_number_of_layers_is_said_before_anything_is_made_of_it(path, tmp_path):
    """A list of the tensors of so many layers would grow for minutes."""
    change_config(path, n_layer=1_000_000_000)
    tracemalloc.start()
    assert "number of layers (L): expected 1, as" in refused(path, tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.end_to_end
def test_the_wrong_number_of_layers_of_several_stacks_is_said(tmp_path):
    mlp = dataclasses.replace(DEEPSEEK.mlp, n=4, k=2, groups=2, chosen_groups=1)
    variant = DEEPSEEK.but(first=(GATED.but(d_mlp=9),), mlp=mlp)
    config = DTransformerConfig(L=3, variant=variant, **SIZES)
    save_pretrained(tmp_path / "in", random_theta(config), config)
    change_config(tmp_path / "in", num_hidden_layers=1_000_000_000)
    assert "number of layers (L): expected 3, as" in refused(tmp_path / "in", tmp_path)


@pytest.fixture(scope="module")
def saved_bart(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "in"
    config = EDTransformerConfig(L_enc=1, L_dec=2, variant=VARIANTS["bart"], **SIZES)
    save_pretrained(path, random_theta(config), config, to="bart")
    return path


@pytest.fixture
def bart(saved_bart, tmp_path):
    return shutil.copytree(saved_bart, tmp_path / "in")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder_layers": 2}, "number of layers of the encoder (L_enc): expected 1, as"),
        ({"decoder_layers": 10**9}, "number of layers of the decoder (L_dec): expected 2, as"),
        ({"decoder_attention_heads": 1, "decoder_ffn_dim": 9}, "than the encoder (decoder_attention_heads = 1)"),
        ({"decoder_attention_heads": 1, "decoder_ffn_dim": 9}, "other ffn_dim than the encoder (decoder_ffn_dim = 9"),
        ({"eos_token_id": 99}, "eos_token_id: expected a token below N_V = 17, got 99; translations would never end"),
    ],
)
def test_what_no_encoder_decoder_has_is_refused(bart, tmp_path, fields, message):
    change_config(bart, **fields)
    assert message in refused(bart, tmp_path)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"0": "a", "1": "b"}, "id2label: expected a name for each of the 3 classes of classifier.weight, got 2"),
        ({"1": "a", "2": "b", "3": "c"}, 'id2label: expected a different name for each class, numbered from "0"'),
        ({"0": "a", "1": "a", "2": "b"}, 'id2label: expected a different name for each class, numbered from "0"'),
        (["a", "b", "c"], "id2label: expected an object, got ['a', 'b', 'c']"),
    ],
)
def test_the_names_of_the_classes_are_held_against_the_head(tmp_path, labels, message):
    variant = BERT.but(head=False, unembedding=Unembedding(tied=True), pooler=True)
    config = ETransformerConfig(L=1, variant=variant, **SIZES)
    theta = ClassifierParams(random_theta(config), np.ones((3, 6), np.float32), np.ones(3, np.float32))
    save_pretrained(tmp_path / "in", theta, config, labels=("x", "y", "z"))
    change_config(tmp_path / "in", id2label=labels)
    assert message in refused(tmp_path / "in", tmp_path)


def test_a_file_is_not_a_checkpoint(path, tmp_path):
    for file in (path / "model.safetensors", path / "config.json"):
        assert "expected a directory w" in refused(file, tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "generation_config.json"])
@pytest.mark.parametrize("kind", ["a pipe", "a directory"])
def test_what_is_not_a_file_is_refused(path, tmp_path, name, kind):
    """A pipe that nobody writes to would be waited for."""
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name) if kind == "a pipe" else (path / name).mkdir()
    assert f"expected a file, got {kind}" in refused(path, tmp_path)


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("to", ["run", "gpt2"])
@pytest.mark.parametrize(
    ("where", "fails"), [("safetensors.numpy.save_file", full_disk), ("pathlib.Path.write_text", full)]
)
def test_a_full_disk_is_said_in_a_sentence_and_leaves_nothing(path, tmp_path, monkeypatch, to, where, fails):
    monkeypatch.setattr(where, fails)
    with pytest.raises(ValueError, match=r"^cannot write to .*: No space left on device$") as raised:
        convert(path, tmp_path / "out", **({} if to == "run" else {"to": to}))
    assert "\n" not in str(raised.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_a_limit_of_file_sizes_is_said_in_a_sentence(path, tmp_path):
    with pytest.raises(ValueError, match=r"^cannot write to .*: File too large$"), files_end_at(1000):
        convert(path, tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_a_model_that_nothing_ends_is_converted_with_a_note(path, tmp_path):
    change_config(path, eos_token_id=50256, bos_token_id=50256)
    said = convert(path, tmp_path / "out")
    assert "eos_token_id: expected a token below N_V = 17, got 50256; so generation continues" in said
    answer = answerer_for(load_run(tmp_path / "out"), Options(l_gen=9, tau=0.0)).answers(["1 2"])[0][0]
    assert (len(answer["text"].split()), answer["ended_by"]) == (9, "length")


def test_an_end_that_there_is_not_is_not_taken_for_the_beginning(path):
    change_config(path, eos_token_id=50256, bos_token_id=3)
    special = load_model(path).tokenizer.special
    assert (special.bos, special.eos) == (3, None)
    change_config(path, eos_token_id=None)
    assert load_model(path).tokenizer.special.eos == 3


class Evil:
    def __reduce__(self):
        return (print, ("code was run",))


@pytest.mark.end_to_end
def test_a_pickle_that_wants_code_run_is_refused(path, tmp_path, capsys):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e .[compare]")
    (path / "model.safetensors").unlink()
    file = path / "pytorch_model.bin"
    torch.save({"transformer.wte.weight": Evil()}, file)
    assert "cannot be read as weights alone: it contains code" in refused(path, tmp_path)
    file.write_bytes(pickle.dumps(Evil()))
    assert "cannot be read as weights alone" in refused(path, tmp_path)
    torch.save({"transformer.wte.weight": torch.ones(2)}, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as weights alone" in refused(path, tmp_path)
    torch.save([1, 2], file)
    assert "expected tensors by name, got something else" in refused(path, tmp_path)
    assert "code was run" not in capsys.readouterr().out


def test_a_pickle_that_is_a_pipe_is_refused_before_pytorch_is_asked_for(path, tmp_path, monkeypatch):
    (path / "model.safetensors").unlink()
    os.mkfifo(path / "pytorch_model.bin")
    monkeypatch.setitem(sys.modules, "torch", None)
    assert refused(path, tmp_path).endswith("pytorch_model.bin: expected a file, got a pipe")
    (path / "pytorch_model.bin").unlink()
    (path / "pytorch_model.bin").write_bytes(b"PK")
    assert "pytorch_model.bin is a PyTorch file, and reading it needs torch" in refused(path, tmp_path)


def test_stored_sinusoids_must_be_those_of_the_variant(tmp_path):
    """All sines before all cosines; not by turns, and not with one position left out."""
    variant = VARIANTS["marian"]
    config = EDTransformerConfig(L_enc=1, L_dec=1, variant=variant, **SIZES)
    save_pretrained(tmp_path / "in", random_theta(config), config, to="marian")
    tensors = tensors_of(tmp_path / "in")
    angle = np.arange(6)[:, None] / 10000 ** (np.arange(3)[None] / 3)
    halves = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
    by_turns = np.stack([np.sin(angle), np.cos(angle)], axis=2).reshape(6, 6)
    learned_later = np.concatenate([halves[:3], halves[4:]])
    broken = np.where(np.arange(6)[:, None] == 2, np.nan, halves)
    cases = (by_turns[:5], "position 0 on"), (learned_later, "position 3 on"), (broken[:5], "position 2 on")
    for table, message in cases:
        stored = {"model.encoder.embed_positions.weight": np.ascontiguousarray(table, np.float32)}
        safetensors.numpy.save_file(tensors | stored, tmp_path / "in" / "model.safetensors")
        expected = f"embed_positions.weight differs from the sinusoidal_halves positions of the model from {message}"
        assert expected in refused(tmp_path / "in", tmp_path)
    tensors["model.encoder.embed_positions.weight"] = halves[:5].astype(np.float16)
    safetensors.numpy.save_file(tensors, tmp_path / "in" / "model.safetensors")
    convert(tmp_path / "in", tmp_path / "out")


def test_a_configuration_with_other_lines_than_the_parameters_is_refused(tmp_path):
    bert = ETransformerConfig(L=1, variant=BERT, **SIZES)
    theta, encoder = (random_theta(config)._replace(variant=PAPER) for config in (CONFIG, bert))
    for other, config in ((theta, CONFIG), (encoder, bert), (ClassifierParams(encoder, np.ones((3, 6)), None), bert)):
        with pytest.raises(InterchangeError, match=r"config\.variant: expected θ's own, "):
            save_pretrained(tmp_path / "out", other, config)
    assert not (tmp_path / "out").exists()


SINUSOIDAL = DTransformerConfig(L=1, variant=VASWANI, d_attn=2, **SIZES)
UNKNOWN = {
    "gpt2 has no embedding.positions = 'sinusoidal', no embedding.scaled = True, no heads of": SINUSOIDAL,
    "bert has no embedding.normalized = False, no unembedding.bias = False": ETransformerConfig(L=1, **SIZES),
    "torch.nn.Transformer has no final_norm = None": EDTransformerConfig(L_enc=1, L_dec=1, **SIZES),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("message", "config"), UNKNOWN.items())
def test_what_no_checkpoint_can_say_is_listed(tmp_path, config, message):
    with pytest.raises(InterchangeError, match=re.escape(message)):
        save_pretrained(tmp_path / "out", random_theta(config), config)
    assert not list(tmp_path.iterdir())


def test_what_does_not_go_together_is_refused(tmp_path):
    theta = random_theta(CONFIG)
    with pytest.raises(InterchangeError, match=r"model of the task d cannot be written as 'bert'; choose one of gpt2"):
        save_pretrained(tmp_path / "out", theta, CONFIG, to="bert")
    llama = DTransformerConfig(L=1, variant=LLAMA, **SIZES | {"d_e": 12})
    with pytest.raises(
        InterchangeError, match=r"gpt2, which has no \S.*, and lacks \d+ more; leave out --to, for llama"
    ):
        save_pretrained(tmp_path / "out", random_theta(llama), llama, to="gpt2")
    with pytest.raises(InterchangeError, match="got DTransformerParams and ETransformerConfig"):
        save_pretrained(tmp_path / "out", theta, ETransformerConfig(L=1, **SIZES))
    with pytest.raises(InterchangeError, match="there is no directory"):
        load_pretrained(tmp_path / "none")


def test_a_large_model_is_never_held_twice(tmp_path, monkeypatch):
    """Reading holds the parameters and one tensor; writing one shard besides."""
    config = DTransformerConfig(N_V=101, l_max=7, L=6, H=2, d_e=128, d_mlp=512, variant=GPT2)
    theta = jax.tree.map(np.asarray, random_theta(config))
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(theta))
    monkeypatch.setattr("training.interchange.containers.SHARD_BYTES", size // 10)
    peaks = {}
    for name, act in (
        ("save", lambda: save_pretrained(tmp_path / "in", theta, config)),
        ("convert", lambda: convert(tmp_path / "in", tmp_path / "run")),
    ):
        tracemalloc.start()
        act()
        peaks[name] = tracemalloc.get_traced_memory()[1] / size
        tracemalloc.stop()
    assert peaks["save"] < 0.35, peaks
    assert peaks["convert"] < 1.35, peaks


def test_lists_over_layers_and_classes_that_no_model_has_are_not_built(tmp_path):
    config = DTransformerConfig(L=2, variant=GPT_NEO, **SIZES)
    save_pretrained(tmp_path / "in", random_theta(config), config, to="gpt_neo")
    types = [[["global", "local"], 500_000_000]]
    change_config(tmp_path / "in", num_layers=1_000_000_000, attention_layers=None, attention_types=types)
    assert "num_layers: expected an integer of at least 1 and less than 2^16" in refused(tmp_path / "in", tmp_path)
    architectures = ["BertForSequenceClassification"]
    change_config(tmp_path / "in", model_type="bert", architectures=architectures, hidden_size=12, num_labels=10**9)
    assert "num_labels: expected an integer of at least 1 and less than 2^20" in refused(tmp_path / "in", tmp_path)
