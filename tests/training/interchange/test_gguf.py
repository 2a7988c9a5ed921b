"""Files of GGUF: their tensors to the last bit, what they say of their model, and damaged and hostile ones."""

import contextlib
import json
import re
import struct
import tracemalloc

import numpy as np
import pytest

from algorithms import d_hidden_state
from tests import gguf_cases
from tests import interchange_cases as cases
from training.interchange import InterchangeError, convert, gguf_file, load_model, load_pretrained, save_pretrained
from training.interchange.gguf_file import GGUFFile
from training.interchange.gguf_models import open_gguf
from training.runs.named_arrays import flatten
from training.runs.trained_model import load_run

gguf = gguf_cases.gguf
torch, transformers = cases.libraries()

SIZES = {"vocab_size": 37, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2}
SIZES |= {"num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 64, "rms_norm_eps": 1e-5}
SIZES |= {"pad_token_id": None}
SCALING = {"logits_scaling": 8.0}
YARN = {"rope_type": "yarn", "rope_theta": 5e4, "factor": 4.0, "original_max_position_embeddings": 16}
YARN |= {"beta_fast": 3.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
IN_WINDOW, OF_ALL = "sliding_attention", "full_attention"
GEMMA4 = {"head_dim": 8, "global_head_dim": 16, "sliding_window": 16, "final_logit_softcapping": 30.0}
MODELS = {
    "llama": {"head_dim": 4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e4}, "attention_bias": True},
    "ministral3": {"head_dim": 8, "rope_parameters": {**YARN, "llama_4_scaling_beta": 0.25}},
    "smollm3": {"num_hidden_layers": 5, "tie_word_embeddings": True},
    "qwen2": {"head_dim": 4, "tie_word_embeddings": True},
    "qwen3": {"head_dim": 8, "tie_word_embeddings": True},
    "olmo2": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
    "olmo3": {"num_hidden_layers": 5, "sliding_window": 16},
    "granite": {"embedding_multiplier": 1.5, "residual_multiplier": 0.25, "attention_multiplier": 0.5, **SCALING},
    "glm4": {"head_dim": 8},
    "arcee": {"mlp_bias": True},
    "apertus": {"rope_parameters": {"rope_type": "default", "rope_theta": 5e4}},
    "seed_oss": {"head_dim": 8},
    "ernie4_5": {"head_dim": 8, "use_bias": True},
    "hunyuan_v1_dense": {"head_dim": 8},
    "olmo": {"clip_qkv": 0.5},
    "exaone4": {"sliding_window": None, "layer_types": ["full_attention"] * 2},
    "starcoder2": {"tie_word_embeddings": False},
    "cohere2": {"num_hidden_layers": 5, "sliding_window": 16, "layer_norm_eps": 1e-5, "logit_scale": 0.25},
    "gemma": {"head_dim": 8},
    "gemma2": {"head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8, "num_hidden_layers": 3},
    "gemma4_text": {
        **GEMMA4,
        "num_hidden_layers": 5,
        "layer_types": [IN_WINDOW, OF_ALL, IN_WINDOW, IN_WINDOW, OF_ALL],
        "num_kv_shared_layers": 3,
        "use_double_wide_mlp": True,
        "hidden_size_per_layer_input": 7,
        "vocab_size_per_layer_input": 37,
    },
    "gemma4_text, experts": {
        **GEMMA4,
        "num_hidden_layers": 3,
        "layer_types": [IN_WINDOW, OF_ALL, OF_ALL],
        "attention_k_eq_v": True,
        "num_global_key_value_heads": 3,
        "hidden_size_per_layer_input": 0,
        "enable_moe_block": True,
        "num_experts": 5,
        "top_k_experts": 3,
        "moe_intermediate_size": 11,
    },
    "gemma3_text": {"head_dim": 8, "sliding_window": 16, "query_pre_attn_scalar": 8, "num_hidden_layers": 7},
}


def make(kind, **changes):
    config = transformers.AutoConfig.for_model(kind.partition(",")[0], **{**SIZES, **MODELS[kind], **changes})
    return cases.randomized(torch, transformers.AutoModelForCausalLM.from_config(config))


def make_gpt2(**changes):
    sizes = {"vocab_size": 37, "n_positions": 16, "n_embd": 12, "n_layer": 2, "n_head": 3, **changes}
    special = {"bos_token_id": 1, "eos_token_id": 2}
    config = transformers.GPT2Config(**sizes, **special)
    return cases.randomized(torch, transformers.GPT2LMHeadModel(config))


def same(a, b, atol=2e-7):
    """The same arrays, as far as files of GGUF have them."""
    a, b = flatten(a), flatten(b)
    assert a.keys() == b.keys()
    for name in a:
        pair = (np.asarray(of[name], np.float32) for of in (a, b))
        np.testing.assert_allclose(*pair, atol=atol, err_msg=name)


def written(model, path, atol=2e-7):
    """The file of a model, which opens again as the same one."""
    theta, config, _ = load_pretrained(cases.saved(model, path / "theirs", "float32"))
    save_pretrained(path / "ours.gguf", theta, config, to=model.config.model_type)
    opened, as_read, _ = load_pretrained(path / "ours.gguf")
    assert as_read == config
    same(opened, theta, atol)
    return GGUFFile(path / "ours.gguf")


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", [*MODELS, "gpt2"])
def test_a_model_is_what_transformers_has_and_is_written_as_by_llama_cpp(kind, tmp_path):
    model = make_gpt2() if kind == "gpt2" else make(kind)
    path = gguf_cases.write(tmp_path / "model.gguf", model)
    ours, theirs = written(model, tmp_path), GGUFFile(path)
    assert set(ours.tensors) == set(theirs.tensors)
    for name in theirs.tensors:
        np.testing.assert_allclose(ours.read(name), theirs.read(name), atol=2e-7, err_msg=name)
    assert not {key: v for key, v in theirs.metadata.items() if "." in key and ours.metadata.get(key) != v}
    (theta, read, _), (state, _) = load_pretrained(path), open_gguf(path)
    expected, described, _ = load_pretrained(tmp_path / "theirs")
    assert read == described
    found, expected = flatten(theta), flatten(expected)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        is_norm = kind in ("gemma", "gemma2", "gemma3_text") and "gamma" in name  # the file has 1 + γ, rounded
        rounded = (array + np.float32(1)) - np.float32(1) if is_norm else array
        assert np.asarray(found[name]).tobytes() == np.asarray(rounded).tobytes(), name
    config = transformers.AutoConfig.for_model(**state)
    assert type(config) is type(model.config)
    others = ("tie_word_embeddings", "hidden_act", "hidden_activation", "layer_types", "no_rope_layers")
    unsaid = {"pad_token_id", *(["rms_norm_eps"] if kind in ("cohere2", "starcoder2", "olmo") else [])}
    unsaid |= {"head_dim", "num_key_value_heads"} if "gemma4" in kind else set()  # which layers have of their own
    for name in {*SIZES, *MODELS.get(kind, ()), *others} - unsaid:
        assert getattr(config, name, None) == getattr(model.config, name, None), name
    for name in ("rope_parameters", "attn_logit_softcapping", "final_logit_softcapping", "n_inner"):
        if getattr(model.config, name, None):
            assert getattr(config, name) == getattr(model.config, name)
    if kind == "gpt2":
        assert (config.n_positions, config.n_embd, config.n_layer, config.n_head) == (16, 12, 2, 3)


def test_keys_that_no_layer_of_gemma_4_reads_are_left_out(tmp_path):
    """As published files of E2B have them; without [window, none] before these layers, llama.cpp reads others."""
    model = make("gemma4_text")
    path = gguf_cases.write(tmp_path / "1.gguf", model)
    unused = {f"blk.3.{name}.weight": np.ones(4, np.float32) for name in ("attn_k", "attn_v", "attn_k_norm")}
    more = gguf_cases.write(tmp_path / "2.gguf", model, tensors=unused)
    same(load_pretrained(more)[0], load_pretrained(path)[0], atol=0)
    other = make("gemma4_text", layer_types=[OF_ALL, IN_WINDOW, IN_WINDOW, IN_WINDOW, OF_ALL])
    with pytest.raises(InterchangeError, match="true and false in the last two layers with keys of their own"):
        written(other, tmp_path)


@pytest.mark.parametrize(("kind", "layers"), [("gemma2", 46), ("gemma3", 62)])
def test_the_scale_of_the_scores_is_another_in_the_largest_gemma(kind, layers, tmp_path):
    """As llama.cpp has it: the file does not say it."""
    for L, expected in ((layers, 24 // 6), (layers - 1, 8)):
        writer = gguf.GGUFWriter(str(tmp_path / f"{L}.gguf"), kind)
        sizes = {**gguf_cases.settings_of(make(f"{kind}_text" if kind == "gemma3" else kind).config), "block_count": L}
        for name, value in sizes.items():
            gguf_cases.add_field(writer, f"{kind}.{name}", value)
        writer.add_tensor("token_embd.weight", np.ones((37, 24), np.float32))
        gguf_cases.finish(writer)
        state, _ = open_gguf(tmp_path / f"{L}.gguf")
        assert state["query_pre_attn_scalar"] == expected
        every = 2 if kind == "gemma2" else 6
        assert state["layer_types"][every - 1 :: every] == ["full_attention"] * (L // every)
        assert state["layer_types"].count("full_attention") == L // every


@pytest.mark.parametrize("slab", [1 << 22, 200])
@pytest.mark.parametrize("form", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_numbers_are_those_that_gguf_dequantizes(form, slab, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_file, "SLAB", slab)
    array = np.random.default_rng(0).normal(size=(7, 5, 96)).astype(np.float32)
    stored = gguf.quants.quantize(array, gguf.GGMLQuantizationType[form])
    assert_dequantized(tmp_path, stored, form, array.shape)


@pytest.mark.parametrize("form", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "IQ2_XXS", "TQ1_0"])
def test_types_that_only_llama_cpp_writes_are_read(form, tmp_path):
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[form]]
    rng = np.random.default_rng(0)
    stored = rng.integers(0, 0x40, (9, 3 * size), np.uint8)  # so that every half-precision scale is finite
    assert_dequantized(tmp_path, stored, form, (9, 3 * block))


def assert_dequantized(path, stored, form, shape):
    writer = gguf.GGUFWriter(str(path / "x.gguf"), "llama")
    writer.add_tensor("first", np.ones(3, np.float32))
    kind = gguf.GGMLQuantizationType[form]
    writer.add_tensor("x", stored, raw_dtype=kind)
    gguf_cases.finish(writer)
    found = GGUFFile(path / "x.gguf").read("x")
    (_, tensor) = gguf.GGUFReader(path / "x.gguf").tensors
    expected = gguf.dequantize(tensor.data, kind)
    assert (found.shape, found.dtype) == (shape, np.float32)
    assert found.tobytes() == expected.reshape(shape).tobytes()


def test_metadata_of_every_type_is_read(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "x.gguf"), "llama")
    written = {
        "uint8": 255, "int8": -128, "uint16": 65535, "int16": -32768, "uint32": 2**32 - 1, "int32": -(2**31),
        "uint64": 2**64 - 1, "int64": -(2**63), "float64": 0.1, "bool": True, "string": "日本 😀",
    }  # fmt: skip
    for name, value in written.items():
        getattr(writer, f"add_{name}")(name, value)
    writer.add_float32("float32", 1e-5)
    writer.add_array("strings", ["a", "", "ü"])
    writer.add_array("floats", [0.5, 0.1])
    writer.add_array("integers", [1, -2])
    writer.add_array("flags", [True, False])
    gguf_cases.finish(writer)
    assert GGUFFile(tmp_path / "x.gguf").metadata == {
        **written,
        "general.architecture": "llama",
        "float32": 1e-5,  # what rounds to it, not 9.999999747378752e-06
        "strings": ["a", "", "ü"],
        "floats": [0.5, 0.1],
        "integers": [1, -2],
        "flags": [True, False],
    }


@pytest.mark.parametrize("length", [8192, 4096, 3001])
def test_llama_3s_frequencies_are_told_from_their_factors(tmp_path, length):
    rope = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    rope |= {"original_max_position_embeddings": length}
    model = make("llama", head_dim=64, rope_parameters=rope)
    plain = 1 / 5e5 ** (np.arange(0, 64, 2) / 64)
    factors = (plain / model.model.rotary_emb.inv_freq.numpy()).astype(np.float32)
    assert (factors.max(), factors.min()) == pytest.approx((32, 1))
    assert np.any((factors > 2) & (factors < 31))
    path = gguf_cases.write(tmp_path / "a.gguf", model, tensors={"rope_freqs.weight": factors})
    state, tensors = open_gguf(path)
    assert state["rope_parameters"] == rope
    assert "rope_freqs.weight" not in tensors.names
    other = gguf_cases.write(tmp_path / "b.gguf", model, tensors={"rope_freqs.weight": np.sqrt(factors)})
    with pytest.raises(InterchangeError, match="frequencies other than Llama 3's"):
        open_gguf(other)


STRETCHED = {"scaling.type": "yarn", "scaling.factor": 8.0, "scaling.original_context_length": 32}
IN_CONFIG = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"scaling.type": "none"}, {}),
        ({"scaling.type": "linear", "scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        (STRETCHED, IN_CONFIG),
        (STRETCHED | {"scaling.attn_factor": 1.2079441541679836}, IN_CONFIG),  # OLMo 3's, which is YaRN's own
        # as llama.cpp's converter writes attention_factor
        (STRETCHED | {"scaling.attn_factor": 1.25}, IN_CONFIG | {"attention_factor": 1.25}),
        ({"dimension_count": 2}, {"partial_rotary_factor": 0.5}),
    ],
)
def test_scaled_positions_are_said(fields, expected, tmp_path):
    fields = {f"llama.rope.{name}": value for name, value in fields.items()}
    state, _ = open_gguf(gguf_cases.write(tmp_path / "x.gguf", make("llama"), fields=fields))
    assert state["rope_parameters"] == {"rope_type": "default", "rope_theta": 5e4, **expected}


def test_further_fields(tmp_path):
    fields = {"tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 5}
    fields |= {"llama.attention.sliding_window": 8, "llama.expert_count": 0, "llama.vocab_size": 37}
    fields |= {"split.count": 0}  # as llama-gguf-split --merge writes it
    state, _ = open_gguf(gguf_cases.write(tmp_path / "x.gguf", make("llama"), fields=fields))
    assert (state["bos_token_id"], state["eos_token_id"]) == (1, [2, 5])
    assert (state["model_type"], state["sliding_window"]) == ("mistral", 8)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"llama.expert_weights_norm": True}, "needs what this library does not have: llama.expert_weights_norm = T"),
        ({"llama.attention.head_count": [6, 3]}, "layers of different sizes"),
        ({"llama.attention.head_count": 0}, "llama.attention.head_count: expected an integer of at least 1, got 0"),
        ({"llama.attention.value_length": 3}, "llama.attention.value_length: expected the 4 .*, got 3"),
        ({"llama.rope.freq_base": -1.0}, "llama.rope.freq_base: expected a number above 0, got -1.0"),
        ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.factor: expected a number above 0, got None"),
        ({"split.count": 3}, "is one of 3 files; join them first: llama-gguf-split --merge"),
    ],
)
def test_a_model_that_needs_more_is_refused(fields, message, tmp_path):
    path = gguf_cases.write(tmp_path / "x.gguf", make("llama"), fields=fields)
    with pytest.raises(InterchangeError, match=message):
        open_gguf(path)


KNOWN = """
llama, mistral3, smollm3, granite, granitemoe, arcee, apertus, llada, seed_oss, ernie4_5, ernie4_5-moe, hunyuan-dense,
olmo, exaone4, starcoder2, qwen2, qwen2moe, glm4moe, qwen3, olmo2, glm4, cohere2, minimax-m2, llama4, qwen3moe, olmoe,
gpt-oss, deepseek2, glm-dsa, gemma, gemma2, gemma3, gemma4, qwen3next, qwen35, qwen35moe, granitehybrid, falcon-h1,
lfm2, lfm2moe, nemotron_h_moe, nemotron_h, kimi-linear and gpt2
"""
KNOWN = " ".join(KNOWN.split())
OTHERS = {
    "mamba": "which needs Mamba's first recurrence, with a rate for each row; in GGUF this library reads {known}",
    "phi3": "which needs rotary positions scaled by LongRoPE; in GGUF this library reads {known}",
    "phi2": "which needs a mapping of its tensors, which is not written yet, although its lines are supported; in GGUF",
    "clip": "which needs images as input; in GGUF this library reads {known}",
    "bert": "general.architecture: expected one of {known}, got 'bert'; if it has a checkpoint of transformers, con",
    "x" * 999: f"general.architecture: expected one of {{known}}, got '{'x' * 60}'; if",
}


@pytest.mark.parametrize("architecture", OTHERS)
def test_other_architectures_are_refused(architecture, tmp_path):
    path = tmp_path / "a.gguf"
    gguf_cases.finish(gguf.GGUFWriter(str(path), architecture))
    with pytest.raises(InterchangeError) as error:
        load_pretrained(path)
    assert str(error.value).startswith(str(path))
    assert OTHERS[architecture].format(known=KNOWN) in str(error.value)


@pytest.mark.parametrize("tied", [True, False])
def test_a_file_becomes_a_run(tied, tmp_path):
    model = make_gpt2(tie_word_embeddings=tied)
    letters = [chr(c) for c in range(ord("a"), ord("a") + 26)]
    tokens = ["<pad>", "<s>", "</s>", *letters, *"0123456"]
    fields = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": tokens}
    fields |= {"tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3), "tokenizer.ggml.bos_token_id": 1}
    fields |= {"tokenizer.ggml.eos_token_id": 2}
    fields |= {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0].content }}"}
    path = gguf_cases.write(tmp_path / "model.gguf", model, fields=fields)
    convert(path, tmp_path / "run")
    x = np.array([1, 5, 9, 3, 36])
    expected = model(torch.tensor(x)[None]).logits[0].detach().numpy()
    for run in (load_run(tmp_path / "run"), load_model(path)):
        ours = cases.column_logits(d_hidden_state(x, run.theta), run.theta)
        assert np.abs(np.asarray(ours) - expected).max() < 1e-4 * np.abs(expected).max()
        assert run.tokenizer.encode("cab") == [5, 3, 4]
        assert (run.tokenizer.bos_token, run.tokenizer.end_tokens) == (1, (2,))
        assert run.tokenizer.chat_template == fields["tokenizer.chat_template"]
    convert(tmp_path / "run", tmp_path / "theirs", to="gpt2")
    assert (tmp_path / "theirs" / "chat_template.jinja").read_text("utf-8") == fields["tokenizer.chat_template"]
    assert json.loads((tmp_path / "theirs" / "config.json").read_text("utf-8"))["eos_token_id"] == 2
    expected = {n: t.numpy() for n, t in model.state_dict().items() if n != "lm_head.weight" or not tied}
    cases.assert_bits(cases.tensors_of(tmp_path / "theirs"), expected)


AT_LEAST_1, ABOVE_0 = "expected an integer of at least 1", "expected a number above 0"
HOSTILE_VALUES = {
    "llama.context_length": [(2**32 - 1, f"max_position_embeddings: {AT_LEAST_1} and less than"), (0, "got 0")],
    "llama.block_count": [(2**32 - 1, f"num_hidden_layers: {AT_LEAST_1} and less"), (9, r"layers \(L\): expected 2")],
    "llama.embedding_length": [(2**32 - 1, f"hidden_size: {AT_LEAST_1} and less than"), (48, "missing|of a")],
    "llama.attention.head_count": [("six", f"{AT_LEAST_1}, got six"), (2**31, "less than"), (5, "divisor")],
    "llama.attention.layer_norm_rms_epsilon": [(float("nan"), f"{ABOVE_0}, got nan"), (0.0, "above 0")],
    "llama.rope.freq_base": [(float("inf"), f"{ABOVE_0}, got inf"), ("ten", f"{ABOVE_0}, got t")],
    "llama.rope.dimension_count": [(2**31, "rotary positions for only part of the rows")],
    "llama.rope.scaling.type": [("longrope", "rope.scaling.factor: expected a number above 0")],
    "gemma2.block_count": [(2**32 - 1, "block_count: expected fewer than 65536 layers, got 4294967295")],
    "gemma2.attention.sliding_window_pattern": [(0, f"pattern: {AT_LEAST_1}, got 0"), ("six", f"{AT_LEAST_1}, got s")],
}


def assert_refused(read, path, message, most):
    """In a sentence, and with at most as many bytes of memory."""
    tracemalloc.start()
    try:
        with pytest.raises(InterchangeError, match=message) as caught:
            read(path)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert len(str(caught.value)) < 500
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", HOSTILE_VALUES)
def test_hostile_values_are_refused_in_a_sentence(key, tmp_path):
    path = tmp_path / "x.gguf"
    for value, message in HOSTILE_VALUES[key]:
        gguf_cases.write(path, make(key.partition(".")[0]), fields={key: value})
        with contextlib.suppress(InterchangeError):
            load_pretrained(path)  # what is imported then is not the file's doing
        assert_refused(load_pretrained, path, message, 1 << 22)


def test_a_tensor_too_many_is_named(tmp_path):
    for name in ("blk.0.attn_sinks", "transformer.ln_f.weight"):  # what transformers calls output_norm.weight
        path = gguf_cases.write(tmp_path / "x.gguf", make_gpt2(), tensors={name: np.ones(3, np.float32)})
        cases.assert_unreadable(path, f"not part of the model .*: {re.escape(name)}")


def string(text):
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def header(fields=b"", n_fields=0, infos=b"", n_tensors=0, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_fields) + fields + infos


def field(key, kind, value):
    return string(key) + struct.pack("<I", kind) + value


def info(name, shape, kind=0, offset=0):
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def one(infos, n=64):
    """A file of one tensor, whose data are some zeros."""
    return header(infos=infos, n_tensors=1) + bytes(n)


def aligned(kind, value):
    return header(field("general.alignment", kind, value), 1)


HUGE, POWER = 1 << 60, "general.alignment: expected a power of two"
HOSTILE = {
    "empty": (b"", "cannot read .*: it is empty"),
    "short": (b"GG", "the magic number at byte 0 needs 4 bytes, but the file ends"),
    "other": (b"PK\x03\x04" + bytes(99), "expected a GGUF file, which begins with GGUF"),
    "version 1": (header(version=1), "version of GGUF: expected 2 or 3, got 1;"),
    "big-endian": (header(version=3 << 24), "version of GGUF: expected 2 or 3, got a big-endian one"),
    "cut counts": (header()[:20], "the counts at byte 4 needs 20 bytes"),
    "2^60 fields": (header(n_fields=HUGE), "the metadata at byte 24 should have 1152921504606846976 entries"),
    "2^60 tensors": (header(n_tensors=HUGE), "the tensors at byte 24 should have 1152921504606846976 entries"),
    "long key": (header(struct.pack("<Q", HUGE) + bytes(40), 1), "a key of the metadata at byte 32 needs"),
    "long text": (header(field("a", 8, struct.pack("<Q", 1 << 32)), 1), "the value of 'a' at byte 45 needs 4294967296"),
    "bad text": (header(field("a", 8, string(b"\xff")), 1), "the value of 'a' at byte 45 is not UTF-8"),
    "bad type": (header(field("a", 13, bytes(8)), 1), "the value of 'a' has the type 13"),
    "nested": (header(field("a", 9, struct.pack("<IQ", 9, 1) + bytes(20)), 1), "the value of 'a' has the type 9"),
    "long array": (header(field("a", 9, struct.pack("<IQ", 0, HUGE)), 1), "the value of 'a' .* should have"),
    "long texts": (header(field("a", 9, struct.pack("<IQ", 8, HUGE)), 1), "the value of 'a' has 11529"),
    "twice": (header(field("a", 0, b"1") * 2, 2), "the metadata has the key 'a' twice"),
    "same tensor": (header(infos=info("x", (1,)) * 2, n_tensors=2) + bytes(64), "the file has the tensor 'x' twice"),
    "no dimension": (header(infos=info("x", ()) + bytes(32), n_tensors=1), "'x' has 0 dimensions, expected 1 to 4"),
    "many dimensions": (one(string("x") + struct.pack("<I", 1 << 31), 99), "'x' has 2147483648 dimensions"),
    "zero": (one(info("x", (0, 3))), r"'x': expected rows .*, got the shape \[3, 0\]"),
    "huge": (one(info("x", (HUGE, HUGE))), "'x' ends at byte 5316911983139663"),
    "past the end": (one(info("x", (64,))), "'x' ends at byte 320, but the file has 121"),
    "far away": (one(info("x", (1,), offset=HUGE)), "'x' ends at byte 115292"),
    "askew": (one(info("x", (1,), offset=4)), "'x': expected rows .* got the shape .* at 4"),
    "half a block": (one(info("x", (33,), 8), 99), "whole blocks of 32"),
    "unknown type": (one(info("x", (32,), 999), 99), "'x' has the type 999"),
    "integers": (one(info("x", (32,), 26), 999), "'x' has the type I32, which .* cannot"),
    "alignment 0": (aligned(4, bytes(4)), f"{POWER}, got '0'"),
    "alignment 3": (aligned(4, struct.pack("<I", 3)), f"{POWER}, got '3'"),
    "alignment text": (aligned(8, string("x" * 999)), f"{POWER}, got 'xxx"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_a_sentence(name, tmp_path):
    data, message = HOSTILE[name]
    path = tmp_path / "x.gguf"
    path.write_bytes(data)
    gguf_file.import_gguf(path)  # what its import takes is not the file's doing
    assert_refused(GGUFFile, path, message, 1 << 20)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    fields = {"tokenizer.ggml.model": "gpt2"}
    fields |= {"tokenizer.ggml.tokens": ["<s>", *map(chr, range(97, 123)), *"012345678", "ab"]}
    fields |= {"tokenizer.ggml.merges": ["a b"], "tokenizer.ggml.bos_token_id": 0}
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    data = gguf_cases.write(path, make_gpt2(n_layer=1), fields=fields).read_bytes()
    load_pretrained(path)
    end = min(info.start for info in GGUFFile(path).tensors.values())
    return data, end


def test_a_truncated_file_is_refused_wherever_it_ends(whole, tmp_path):
    data, end = whole
    path = tmp_path / "x.gguf"
    for length in [*range(0, end, 7), *range(end, len(data) - 1, 97)]:
        path.write_bytes(data[:length])
        with pytest.raises(InterchangeError):
            load_pretrained(path)


@pytest.mark.parametrize("seed", range(4))
def test_a_damaged_header_is_read_or_refused(whole, seed, tmp_path):
    """Never another exception, and nothing large made of a small file."""
    data, end = whole
    rng = np.random.default_rng(seed)
    path = tmp_path / "x.gguf"
    refused = 0
    for _ in range(60):
        damaged = bytearray(data)
        for at in rng.integers(0, end, rng.integers(1, 4)):
            damaged[at] = rng.choice([0, 255, rng.integers(256)])
        path.write_bytes(damaged)
        try:
            load_pretrained(path)
        except InterchangeError:
            refused += 1
    assert refused > 20


def test_a_file_that_is_not_gguf_is_refused_by_its_name(tmp_path):
    (tmp_path / "model.bin").write_bytes(b"x")
    cases.assert_unreadable(tmp_path / "model.bin", r"or a file named \*\.gguf, got another file")
    cases.assert_unreadable(tmp_path / "model.gguf", "there is no file")
