"""What is wrong with a checkpoint is said in one sentence, all at once, and nothing is written."""

import json
import pickle
import re
import tracemalloc

import jax
import numpy as np
import pytest
import safetensors.numpy
import tokenizers

from algorithms import GPT2, PAPER, VASWANI, DTransformerConfig, EDTransformerConfig, ETransformerConfig
from tests.cases import random_theta
from tests.interchange_cases import change_config, tensors_of
from training.interchange import InterchangeError, convert, load_pretrained, save_pretrained
from training.interchange.encoder_decoder import VARIANTS

SIZES = {"N_V": 17, "l_max": 5, "H": 2, "d_e": 6, "d_mlp": 7}
CONFIG = DTransformerConfig(L=1, variant=GPT2, **SIZES)


@pytest.fixture
def path(tmp_path):
    save_pretrained(tmp_path / "in", random_theta(CONFIG), CONFIG)
    return tmp_path / "in"


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
    assert "transformer.h.0.attn.c_attn.weight [6, 18] instead of [8, 24]" in message


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_head": 4}, "d_e = 6 is not a multiple of H = 4"),
        ({"n_head": "two"}, "n_head is 'two', expected an integer of at least 1"),
        ({"layer_norm_epsilon": -1}, "layer_norm_epsilon is -1, expected a number of at least 0"),
        ({"tie_word_embeddings": 1}, "tie_word_embeddings is 1, expected true or false"),
        (
            {"activation_function": "mish", "scale_attn_weights": False},
            "scores that are not divided by √d_attn (scale_attn_weights = False), the activation 'mish'",
        ),
        ({"model_type": "llama"}, "is a llama, which needs rotary positions, a gated MLP (SwiGLU), RMSnorm"),
        ({"model_type": "mamba"}, "model_type is 'mamba', expected one of gpt2, bert, bart, marian, fsmt, torch.nn"),
    ],
)
def test_what_is_not_supported_is_refused(path, tmp_path, changed, message):
    change_config(path, **changed)
    assert message in refused(path, tmp_path)


def test_damaged_files_are_refused(path, tmp_path):
    whole = (path / "model.safetensors").read_bytes()
    for damaged in (whole[:-5], whole[:40], b"", b"not safetensors"):
        (path / "model.safetensors").write_bytes(damaged)
        assert "is damaged or no safetensors file" in refused(path, tmp_path)
    (path / "model.safetensors").unlink()
    assert "holds no weights: expected model.safetensors or pytorch_model.bin" in refused(path, tmp_path)
    (path / "config.json").write_text("{")
    assert "config.json holds no JSON" in refused(path, tmp_path)
    (path / "config.json").unlink()
    assert "cannot read" in refused(path, tmp_path)


def test_a_tensor_of_another_kind_is_refused(path, tmp_path):
    tensors = tensors_of(path) | {"transformer.ln_f.bias": np.arange(6)}
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    assert "transformer.ln_f.bias has the type int64, expected floating-point numbers" in refused(path, tmp_path)


def test_shards_must_be_beside_their_index(path, tmp_path):
    (path / "model.safetensors").rename(path / "model-1.safetensors")
    names = list(tensors_of(path))
    for file, message in (("../in/model-1.safetensors", "names files that are not beside it"), ("none", "none")):
        index = {"weight_map": dict.fromkeys(names, file)}
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
        assert message in refused(path, tmp_path)
    (path / "model.safetensors.index.json").write_text("[]")
    assert "cannot be read" in refused(path, tmp_path)


class Evil:
    def __reduce__(self):
        return (print, ("code was run",))


def test_a_pickle_that_wants_code_run_is_refused(path, tmp_path, capsys):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e .[compare]")
    (path / "model.safetensors").unlink()
    file = path / "pytorch_model.bin"
    torch.save({"transformer.wte.weight": Evil()}, file)
    assert "cannot be read as weights alone: it asks for code to be run" in refused(path, tmp_path)
    file.write_bytes(pickle.dumps(Evil()))
    assert "cannot be read as weights alone" in refused(path, tmp_path)
    torch.save({"transformer.wte.weight": torch.ones(2)}, file)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert "cannot be read as weights alone" in refused(path, tmp_path)
    torch.save([1, 2], file)
    assert "expected tensors by name, got something else" in refused(path, tmp_path)
    assert "code was run" not in capsys.readouterr().out


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
    safetensors.numpy.save_file(
        tensors | {"model.encoder.embed_positions.weight": halves[:5].astype(np.float16)},
        tmp_path / "in" / "model.safetensors",
    )
    convert(tmp_path / "in", tmp_path / "out")


def test_a_tokenizer_of_another_model_is_refused(path, tmp_path):
    tokenizers.Tokenizer(tokenizers.models.WordLevel({str(i): i for i in range(18)})).save(str(path / "tokenizer.json"))
    assert "the tokenizer has 18 tokens, but the model only N_V = 17" in refused(path, tmp_path)
    (path / "tokenizer.json").write_text("{")
    assert "is no tokenizer that can be read" in refused(path, tmp_path)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            DTransformerConfig(L=1, variant=VASWANI, d_attn=2, **SIZES),
            "gpt2 has no embedding.positions = 'sinusoidal', no embedding.scaled = True, no heads of",
        ),
        (
            ETransformerConfig(L=1, variant=PAPER, **SIZES),
            "bert has no embedding.normalized = False, no unembedding.bias = False",
        ),
        (
            EDTransformerConfig(L_enc=1, L_dec=1, variant=PAPER, **SIZES),
            "torch.nn.Transformer has no final_norm = None",
        ),
    ],
)
def test_what_no_checkpoint_can_say_is_listed(tmp_path, config, message):
    with pytest.raises(InterchangeError, match=re.escape(message)):
        save_pretrained(tmp_path / "out", random_theta(config), config)
    assert not list(tmp_path.iterdir())


def test_what_does_not_go_together_is_refused(tmp_path):
    theta = random_theta(CONFIG)
    with pytest.raises(
        InterchangeError, match=r"a model of the task d cannot be written as 'bert'; choose one of gpt2"
    ):
        save_pretrained(tmp_path / "out", theta, CONFIG, to="bert")
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
