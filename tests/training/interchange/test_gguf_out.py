"""GGUF files that are written here: they open again as the same model, and hold what llama.cpp's converter writes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from algorithms import (
    VARIANTS,
    DTransformerConfig,
    ETransformerConfig,
    d_logits,
    init_d_transformer,
    init_e_transformer,
)
from tests import gguf_cases
from tests import interchange_cases as cases
from tests.training.interchange import test_decoders
from tests.training.interchange.test_gguf import make, make_gpt2, same, written
from tests.training.interchange.test_gguf_tokenizer import TEXTS, bpe, of_bytes, of_pieces, trained  # noqa: F401
from tests.training.interchange.test_gguf_tokenizer import read as of_tokens
from training.crosscheck.models import few
from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import ByteTokenizer, CharacterTokenizer
from training.interchange import (
    InterchangeError,
    convert,
    gguf_tokenizer,
    gguf_writing,
    load_pretrained,
    save_pretrained,
)
from training.interchange.description import Model
from training.interchange.gguf_file import GGUFFile

torch, transformers = cases.libraries()
HALF = {"float16": np.float16, "bfloat16": jnp.bfloat16}


HYBRIDS = {"granite_hybrid": {}, "granite_hybrid, experts": {}, "qwen3_next": {}, "qwen3_5": {}, "qwen3_5_moe": {}}
HYBRIDS |= {"lfm2": {"conv_bias": False}, "lfm2_moe": {}}
HYBRIDS["nemotron_h"] = {"time_step_min": 0.001}
HYBRIDS["nemotron_h, experts"] = {"time_step_min": 0.001, "hybrid_override_pattern": "MEM*E"}
HYBRIDS |= {name: {"linear_num_heads": 6} for name in ("kimi_linear", "kimi_linear, a latent of queries")}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_hybrid_opens_again_and_has_llama_cpps_decay(name, tmp_path):
    model = test_decoders.make(name, **HYBRIDS[name])
    file = written(model, tmp_path, atol=1e-6)
    logarithms = {n: a.numpy() for n, a in model.state_dict().items() if n.endswith("A_log")}
    assert len(logarithms) >= 2 or "lfm2" in name
    for n, a in logarithms.items():
        found = file.read(f"blk.{n.split('.')[2]}.ssm_a")
        in_order = a.reshape(3, 2).T if name.startswith("qwen3_5") else a  # the first head of each key, then the second
        np.testing.assert_allclose(found.reshape(-1), -np.exp(in_order.reshape(-1)), rtol=1e-6)
    exact = [info.type for n, info in file.tensors.items() if "conv1d" in n or "conv.conv" in n or "ssm_norm" in n]
    assert {*exact} == {"F32"}
    if name.startswith(("lfm2", "nemotron_h")):
        names = gguf_cases.names_in(file.metadata["general.architecture"], len(model.model.layers))
        theirs = [n for n in cases.tensors_of(tmp_path / "theirs") if n.endswith((".weight", ".bias"))]
        mapped = {names.get_name(n, (".weight", ".bias")) for n in theirs} - {None}
        assert "blk.1.attn_norm.weight" in mapped
        assert mapped <= {*file.tensors}


def test_the_factors_of_falcon_h1_are_in_its_matrices_as_in_llama_cpp(tmp_path):
    """And what opens again computes what transformers does; a tied W_u gets its own factor, and is a matrix then."""
    tied = {"tie_word_embeddings": True, "mamba_rms_norm": True}
    for i, changes in enumerate(({}, tied)):
        model, path = test_decoders.make("falcon_h1", **changes), tmp_path / f"{i}.gguf"
        theta, config, _ = load_pretrained(cases.saved(model, tmp_path / f"{i}", "float32"))
        save_pretrained(path, theta, config)
        file, c, tensors = GGUFFile(path), model.config, model.state_dict()
        names = gguf_cases.names_in("falcon-h1", c.num_hidden_layers)
        z, x, k, q, a = c.ssm_multipliers
        rows = (c.mamba_d_ssm, c.mamba_d_ssm, *[c.mamba_n_groups * c.mamba_d_state] * 2, c.mamba_n_heads)
        scores = c.key_multiplier * c.attention_in_multiplier**2
        expected = {
            "model.embed_tokens": c.embedding_multiplier,
            "lm_head": c.lm_head_multiplier,
            "model.layers.1.self_attn.q_proj": 1.0,
            "model.layers.1.self_attn.k_proj": scores,  # that of the queries' inputs, too, with the same scores
            "model.layers.1.self_attn.o_proj": c.attention_out_multiplier * c.attention_in_multiplier,
            "model.layers.1.mamba.in_proj": np.repeat((z, x, k, q, a), rows)[:, None] * c.ssm_in_multiplier,
            "model.layers.1.mamba.out_proj": c.ssm_out_multiplier,
            "model.layers.1.feed_forward.gate_proj": c.mlp_multipliers[0],
            "model.layers.1.feed_forward.up_proj": 1.0,
            "model.layers.1.feed_forward.down_proj": c.mlp_multipliers[1],
            "model.final_layernorm": 1.0,
        }
        for name, factor in expected.items():
            found, theirs = file.read(f"{names.get_name(name)}.weight"), tensors[f"{name}.weight"].numpy() * factor
            np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-6, err_msg=name)
        tokens = np.random.default_rng(1).integers(31, size=19)
        opened, _, _ = load_pretrained(path)
        ours = jnp.moveaxis(d_logits(jnp.asarray(tokens), opened), 0, -1)
        cases.assert_same(ours, model(torch.tensor(tokens)[None]).logits[0].detach(), "float32", "logits")


def test_llada_is_written_by_the_names_of_llama_cpp_and_opens_again(tmp_path, x32):
    variant = few(VARIANTS["LLADA"])
    config = ETransformerConfig(N_V=31, l_max=16, L=2, H=6, H_kv=2, d_e=24, d_mlp=13, variant=variant)
    theta = init_e_transformer(jax.random.key(0), config)
    for name in ("directory", "model.gguf"):
        save_pretrained(tmp_path / name, theta, config)
        again, as_read, _ = load_pretrained(tmp_path / name)
        assert as_read == config
        same(again, theta)
    file, names = GGUFFile(tmp_path / "model.gguf"), gguf_cases.names_in("llada", 2)
    theirs = {
        names.get_name(n, (".weight",)): gguf_cases.permuted(a, {"q": 6, "k": 2}[n[-13]]) if n[-13] in "qk" else a
        for n, a in cases.tensors_of(tmp_path / "directory").items()
    }
    assert theirs.keys() == file.tensors.keys()
    for name, array in theirs.items():
        np.testing.assert_array_equal(file.read(name), array, err_msg=name)
    assert (file.metadata["llada.attention.causal"], file.metadata["diffusion.shift_logits"]) == (False, False)


@pytest.mark.parametrize("name", ["directory", "model.gguf"])
def test_a_cycle_that_fewer_layers_do_not_show_is_kept(name, tmp_path, x32):
    """One attention in eleven layers: those after it might be as far from the next in six layers as in ten."""
    variant, sizes = few(VARIANTS["GRANITE_HYBRID"]), {"L": 11, "H": 4, "d_e": 12, "d_attn": 4, "d_mid": 4}
    config = DTransformerConfig(**{**OWN, **sizes}, variant=variant)
    theta = init_d_transformer(jax.random.key(0), config)
    save_pretrained(tmp_path / name, theta, config)
    again, as_read, _ = load_pretrained(tmp_path / name)
    assert as_read == config
    same(again, theta, atol=1e-6)


def test_scaled_positions_and_half_precision_are_kept(tmp_path):
    llama3 = {"rope_type": "llama3", "rope_theta": 5e7, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    yarn = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    original = {"original_max_position_embeddings": 8192}
    other, own = {"original_max_position_embeddings": 3001}, {"attention_factor": 0.1 * np.log(4.0) + 1}
    scaled = (
        llama3 | original,
        yarn | original | own,
        {**yarn, "rope_type": "linear"},
        llama3 | other | {"rope_theta": 5.7e4},
    )
    for i, rotary in enumerate(scaled):
        dtype = ("float16", "bfloat16")[i % 2]
        model = make("llama", head_dim=8, rope_parameters=rotary)
        theta, config, _ = load_pretrained(cases.saved(model, tmp_path / f"{i}", "float32"))
        theta = theta._replace(**{f: jnp.asarray(getattr(theta, f), HALF[dtype]) for f in ("W_e", "W_u")})
        save_pretrained(tmp_path / f"{i}.gguf", theta, config)
        opened, as_read, _ = load_pretrained(tmp_path / f"{i}.gguf")
        assert as_read == config
        same(opened, theta)
        types = {name: info.type for name, info in GGUFFile(tmp_path / f"{i}.gguf").tensors.items()}
        assert types["token_embd.weight"] == {"float16": "F16", "bfloat16": "BF16"}[dtype]
        assert {types[name] for name in types if "norm" in name or "bias" in name} == {"F32"}


NO_LOGARITHM = {**test_decoders.MSCALE, "mscale_all_dim": 0.0}
WINDOWS = {"layer_types": ["full_attention", "sliding_attention", "full_attention"]}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("gemma2", WINDOWS, "gemma2 has no .*attention"),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 0, "sliding_window": 8}, "qwen3 has no .*window"),
        ("smollm3", {"no_rope_layers": [1, 1, 0, 1, 1]}, "smollm3 has no .*attention"),
        ("olmoe, clipped", {"num_key_value_heads": 6}, r"olmoe has no .*attention.clip = 0.5"),
        ("deepseek_v2", {}, "attention_factor"),  # mscale and mscale_all_dim differ
        ("deepseek_v2", {"rope_parameters": NO_LOGARITHM}, "log_multiplier: expected a number abov"),
        ("deepseek_v3", {"rope_interleave": False}, "attention.positions.pairs = 'halves'"),
        ("kimi_linear", {}, "kimi_linear has no attention"),  # of other numbers of heads
        ("qwen3_next", {"layer_types": ["linear_attention", *["full_attention"] * 2]}, "qwen3_next has no attention"),
    ],
)
def test_what_gguf_cannot_say_is_refused_by_name(name, changes, message, tmp_path):
    theta, config, _ = load_pretrained(cases.saved(test_decoders.make(name, **changes), tmp_path / "theirs", "float32"))
    with pytest.raises(InterchangeError, match=message):
        save_pretrained(tmp_path / "out.gguf", theta, config)
    assert not (tmp_path / "out.gguf").exists()


def test_numbers_and_tokenizers_that_gguf_does_not_have_are_refused(tmp_path):
    theta, config, _ = load_pretrained(cases.saved(make("llama"), tmp_path / "llama", "float32"))
    with pytest.raises(InterchangeError, match="float64"):
        save_pretrained(tmp_path / "out.gguf", theta._replace(W_e=np.asarray(theta.W_e, np.float64)), config)
    with pytest.raises(InterchangeError, match="GGUF has no tokenizers of the kind WordLevel"):
        save_pretrained(tmp_path / "out.gguf", theta, config, CharacterTokenizer(tuple("abc")))
    assert not (tmp_path / "out.gguf").exists()


def test_the_tokenizer_goes_out_and_comes_back(bpe, tmp_path):  # noqa: F811
    """Byte-level and SentencePiece vocabularies, special tokens and templates, from GGUF and from tokenizer.json."""
    assert ("ĠĠ", "ĠĠ") in bpe[1]  # the merge that stands in a file of bytes for none
    sentencepiece = trained(tmp_path)
    model = Model("d", DTransformerConfig(N_V=1600, l_max=8, L=1, H=1, d_e=4, d_mlp=4))
    templated = {"chat_template": "{{ bos_token }}", "ggml.eot_token_id": 5}
    ways = [{"ggml.pre": name} for name in ("gpt-2", "smollm", "llama-bpe", "qwen2", "deepseek-v3", "tekken")]
    read_here = [of_tokens(of_bytes(bpe, **way, **templated), N_V=1600) for way in ways]
    read_here += [of_tokens(of_pieces(sentencepiece) | {"ggml.add_space_prefix": p}, N_V=1600) for p in (True, False)]
    for tokenizer in [*read_here, ByteTokenizer()]:
        own = model if tokenizer.special else Model("d", dataclasses.replace(model.config, N_V=tokenizer.N_V))
        metadata = gguf_tokenizer.metadata_of(tmp_path / "model.gguf", tokenizer, own, "llama")
        again = gguf_tokenizer.read(tmp_path / "model.gguf", metadata, own.config.N_V)
        for text in TEXTS:
            assert again.encode(text) == tokenizer.encode(text), repr(text[:80])
        assert again.chat_template == tokenizer.chat_template
        paper = SpecialTokens(259, 256, 257, 258, (257,), others=(256, 257, 258))
        assert again.special == (tokenizer.special or paper)
        assert again.framed([7], ends=False) == tokenizer.framed([7], ends=False)


def test_a_run_goes_out_by_the_command(tmp_path, capsys):
    theta, config, _ = load_pretrained(cases.saved(make_gpt2(vocab_size=259), tmp_path / "theirs", "float32"))
    save_pretrained(tmp_path / "run", theta, config, ByteTokenizer(), to="run")
    assert "llama.cpp" in convert(tmp_path / "run", tmp_path / "model.gguf")
    assert "a GGUF file" in convert(tmp_path / "model.gguf", tmp_path / "again.gguf")
    assert (tmp_path / "model.gguf").stat().st_size == (tmp_path / "again.gguf").stat().st_size
    opened, as_read, tokenizer = load_pretrained(tmp_path / "again.gguf")
    assert (as_read, tokenizer.encode("aé")) == (config, [97, 195, 169])
    same(opened, theta)
    with pytest.raises(InterchangeError, match="already exists"):
        convert(tmp_path / "run", tmp_path / "model.gguf")
    with pytest.raises(InterchangeError, match="as 'run'; choose one of gpt2"):
        convert(tmp_path / "run", tmp_path / "new.gguf", to="run")


OWN = {"N_V": 259, "l_max": 16, "L": 2, "H": 2, "d_e": 32, "d_mlp": 64}


def own(name, *, tied=False, **sizes):
    """A model of a named variant with random parameters."""
    variant = VARIANTS[name].but(unembedding=VARIANTS[name].unembedding.but(tied=tied))
    config = DTransformerConfig(**OWN | sizes, variant=variant)
    return init_d_transformer(jax.random.key(0), config), config


@pytest.mark.parametrize("name", ["OLMO2", "OLMOE", "GPT_OSS"])
def test_where_llama_cpp_asks_for_w_u_the_file_has_it_and_reads_as_tied(name, tmp_path, x32):
    theta, config = own(name, tied=True)
    save_pretrained(tmp_path / "model.gguf", theta, config)
    file = GGUFFile(tmp_path / "model.gguf")
    np.testing.assert_array_equal(file.read("output.weight"), file.read("token_embd.weight"))
    opened, as_read, _ = load_pretrained(tmp_path / "model.gguf")
    assert as_read.tied
    same(opened, theta)


@pytest.mark.parametrize("form", gguf_writing.QUANTIZED)
def test_quantized_matrices_are_those_of_gguf(form, tmp_path, x32):
    theta, config = own("GPT2", d_e=64)
    save_pretrained(tmp_path / "model.gguf", theta, config, quantize=form)
    file = GGUFFile(tmp_path / "model.gguf")
    quantized = {name for name, info in file.tensors.items() if info.type == form}
    matrices = {name for name, info in file.tensors.items() if len(info.shape) == 2}
    assert quantized == matrices - {"position_embd.weight"}
    number = gguf_cases.gguf.GGMLQuantizationType[form]
    rounded = gguf_cases.gguf.quants.dequantize(
        gguf_cases.gguf.quants.quantize(np.array(theta.W_e.T, np.float32), number), number
    )
    opened, _, _ = load_pretrained(tmp_path / "model.gguf")
    np.testing.assert_array_equal(opened.W_e, rounded.T)
    assert 0 < np.abs(rounded.T - theta.W_e).max() < 0.03
    np.testing.assert_array_equal(opened.W_p, theta.W_p)


def test_what_llama_cpp_does_not_open_is_refused_in_a_sentence(tmp_path, x32):
    for name, sizes, options, message in (
        ("GEMMA", {}, {}, "written: gemma has no W_u in llama.cpp, which takes W_eᵀ$"),
        ("OLMOE", {"H": 4, "H_kv": 2}, {}, r"written: olmoe has no keys shared by heads in llama.cpp \(H_kv = 2\)$"),
        ("GPT2", {"d_e": 36}, {"quantize": "Q8_0"}, "whole blocks of 32, as Q8_0 has them, got 36 numbers in the rows"),
    ):
        theta, config = own(name, **sizes)
        with pytest.raises(InterchangeError, match=message):
            save_pretrained(tmp_path / "model.gguf", theta, config, **options)
        assert not (tmp_path / "model.gguf").exists()
    for options, message in (
        ({"to": "gguf"}, r"--to gguf: expected a file named \*.gguf, got .*out; write .*out.gguf"),
        ({"quantize": "Q8_0"}, r"--quantize: expected a file named \*.gguf with it, got .*out; leave it out"),
    ):
        with pytest.raises(InterchangeError, match=message):
            save_pretrained(tmp_path / "out", *own("GPT2"), **options)
    save_pretrained(tmp_path / "model.gguf", *own("GPT2"), ByteTokenizer(), to="gguf")
    assert GGUFFile(tmp_path / "model.gguf").metadata["tokenizer.ggml.merges"]  # without any, llama.cpp opens no file


EXPERTS = {name: {} for name in ("mixtral", "qwen3_moe", "qwen2_moe", "minimax_m2")}
EXPERTS |= {"olmoe": {"num_key_value_heads": 6}, "gpt_oss": {"rope_parameters": test_decoders.DEFAULT}}
EXPERTS["gpt_oss"] |= {"swiglu_limit": 7.0}  # as llama.cpp has it
EXPERTS |= {"glm4_moe": {"first_k_dense_replace": 0}, "ernie4_5_moe": {"moe_layer_start_index": 0}}


@pytest.mark.parametrize("kind", EXPERTS)
def test_experts_open_again_and_are_together_as_in_llama_cpp(kind, tmp_path):
    model = test_decoders.make(kind, **EXPERTS[kind]).float()
    file, theirs, config = written(model, tmp_path), gguf_cases.tensors_of(model), model.config
    assert file.metadata["general.architecture"] == gguf_cases.architecture_of(config)
    assert file.tensors.keys() - {"output.weight"} <= theirs.keys()
    compared = [name for name in file.tensors if "exps" in name or "gate_inp." in name or "sinks" in name]
    assert len(compared) == (9 if kind == "gpt_oss" else 4) * config.num_hidden_layers
    for name in compared:
        np.testing.assert_array_equal(file.read(name), theirs[name], err_msg=name)
    assert {file.tensors[name].type for name in compared if "gate_inp" in name} == {"F32"}
