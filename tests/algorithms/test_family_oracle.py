"""The oracle's changed lines against `transformers`: tiny random models of each family, all in float64.

`transformers` computes norms, softmax and rotary angles in float32 by name; here that name means float64.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from training.crosscheck.oracle import family
from training.crosscheck.oracle.parameters import unstack_family

N_V, LENGTH, H, H_KV, D_ATTN, L = 131, 23, 6, 2, 8, 3
X = np.random.default_rng(5).integers(3, N_V, LENGTH)  # 0 to 2 are padding tokens of some
EPSILON = 1e-3
SIZES = {"vocab_size": N_V, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
DECODER = {
    **SIZES, "hidden_size": 42, "intermediate_size": 61, "num_hidden_layers": L, "num_attention_heads": H,
    "max_position_embeddings": 64, "attn_implementation": "eager",
}  # fmt: skip
GROUPED = {**DECODER, "num_key_value_heads": H_KV, "head_dim": D_ATTN, "rms_norm_eps": EPSILON}
ROTARY = {"kind": "rotary", "base": 100.0}
ROPE = {"rope_type": "default", "rope_theta": 100.0}
LLAMA = {
    **family.PAPER, "positions": None, "norm": "rms_norm", "epsilon": EPSILON, "activation": "silu",
    "attention": [{"positions": ROTARY}],
}  # fmt: skip
GEMMA = {**LLAMA, "norm_offset": 1.0, "embedding_scale": "sqrt_d_e", "activation": "gelu_tanh"}
POST_NORM = {**family.PAPER, "epsilon": EPSILON, "order": "norm_last"}
PRE_NORM = {**family.PAPER, "epsilon": EPSILON}


@pytest.fixture
def hf(monkeypatch):
    """The package `transformers`, in which float32 is float64."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    _ = pytest.importorskip("safetensors.torch"), transformers.modeling_utils  # tables of dtypes, made before
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield transformers
    torch.set_default_dtype(default)


class Weights:
    """The weights of a PyTorch model by name, as float64 arrays; None where there is no such name."""

    def __init__(self, model):
        torch = pytest.importorskip("torch")
        rng = np.random.default_rng(7)
        self.model = model.double().eval()
        with torch.no_grad():
            for W in model.parameters():
                values = rng.normal(size=tuple(W.shape))
                W.copy_(torch.asarray(0.3 * values if W.ndim > 1 else 0.4 * values + 0.3))
        self.arrays = {name: W.numpy().astype(np.float64) for name, W in model.state_dict().items()}

    def __call__(self, name) -> Any:
        return self.arrays.get(name)

    def linear(self, name) -> Any:
        return self(f"{name}.weight"), self(f"{name}.bias")

    def norm(self, name):
        gamma, beta = self.linear(name)
        assert gamma is not None, name
        return SimpleNamespace(gamma=gamma, beta=beta)

    def norms(self, name, norms):
        return {field: self.norm(f"{name}.{norm}") for field, norm in norms.items()}

    def attention(self, q, k, v, o, q_norm=None, k_norm=None, **more):
        """Attention from the names of its four projections."""
        arrays = [array for name in (q, k, v, o) for array in self.linear(name)]
        return mh_attention(*arrays, gamma_q=self(q_norm), gamma_k=self(k_norm), **more)

    def attention_by_head(self, qkv, o):
        """Attention from one projection with rows [H, 3, d_attn]."""
        W, b = self.linear(qkv)
        W, b = W.reshape(H, 3, -1, W.shape[1]), b.reshape(H, 3, -1)
        parts = [array[:, i].reshape(-1, *array.shape[3:]) for i in range(3) for array in (W, b)]
        return mh_attention(*parts, *self.linear(o))

    def mlp(self, up, down, gate=None):
        (W_mlp1, b_mlp1), (W_mlp2, b_mlp2), (W_gate, b_gate) = (self.linear(name) for name in (up, down, gate))
        return SimpleNamespace(W_mlp1=W_mlp1, b_mlp1=b_mlp1, W_mlp2=W_mlp2, b_mlp2=b_mlp2, W_gate=W_gate, b_gate=b_gate)

    def logits(self, x=X, **inputs):
        """The model's logits [N_V, l] for one sequence."""
        torch = pytest.importorskip("torch")
        inputs = {name: torch.asarray(np.array(v)[None]) for name, v in {"input_ids": x, **inputs}.items()}
        with torch.no_grad():
            return self.model(**inputs).logits[0].numpy().T


def mh_attention(W_q, b_q, W_k, b_k, W_v, b_v, W_o, b_o, gamma_q=None, gamma_k=None, heads=H, groups=H, **more):
    def stack(W, number):
        return None if W is None else W.reshape(number, -1, *W.shape[1:])

    stacked = SimpleNamespace(
        W_q=stack(W_q, heads), b_q=stack(b_q, heads), W_k=stack(W_k, groups), b_k=stack(b_k, groups),
        W_v=stack(W_v, groups), b_v=stack(b_v, groups), gamma_q=gamma_q, gamma_k=gamma_k, **more,
    )  # fmt: skip
    return unstack_family(SimpleNamespace(heads=stacked, W_o=W_o, b_o=b_o))


def layer(attention, mlp, **norms):
    return SimpleNamespace(attention=attention, mlp=mlp, **norms)


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())


LLAMA_NORMS = {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"}
GEMMA2_NORMS = {
    "norm1": "input_layernorm", "norm1_out": "post_attention_layernorm",
    "norm2": "pre_feedforward_layernorm", "norm2_out": "post_feedforward_layernorm",
}  # fmt: skip


def llama_theta(weights, norms=LLAMA_NORMS, tied=False):
    """Parameters from the names that Llama's descendants share."""
    layers = []
    for l in range(L):
        name = f"model.layers.{l}"
        projections = [f"{name}.self_attn.{part}_proj" for part in "qkvo"]
        of_heads = [f"{name}.self_attn.{part}_norm.weight" for part in "qk"]
        attention = weights.attention(*projections, *of_heads, groups=H_KV)
        mlp = weights.mlp(*(f"{name}.mlp.{part}_proj" for part in ("up", "down", "gate")))
        layers.append(layer(attention, mlp, **weights.norms(name, norms)))
    W_u, W_e = None if tied else weights("lm_head.weight"), weights("model.embed_tokens.weight").T
    return SimpleNamespace(W_e=W_e, layers=layers, norm=weights.norm("model.norm"), W_u=W_u)


def llama(hf, rope=ROPE, **config):
    config = {"rope_parameters": rope, "tie_word_embeddings": False, **config}
    return Weights(hf.LlamaForCausalLM(hf.LlamaConfig(**GROUPED, **config)))


@pytest.mark.parametrize("biases", [False, True])
def test_llama(hf, biases):
    weights = llama(hf, attention_bias=biases, mlp_bias=biases)
    close(family.d_logits(X, llama_theta(weights), LLAMA), weights.logits())


LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"factor": 4.0, "beta_fast": 3.0, "beta_slow": 0.5, "original_length": 20}
SCALINGS = [
    {"kind": "linear", "factor": 3.0},
    {"kind": "llama3", **LLAMA3, "original_length": 40},
    {"kind": "yarn", **YARN},
    {"kind": "yarn", **YARN, "truncate": False},
    {"kind": "yarn", "factor": 4.0, "original_length": 20, "attention_factor": 1.3},
    {"kind": "yarn", **YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    {"kind": "yarn", **YARN, "mscale": 0.7},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: "-".join(map(str, s.values())))
def test_scaled_rotary_positions(hf, scaling):
    numbers = {name: value for name, value in scaling.items() if name not in ("kind", "original_length")}
    rope = {**ROPE, "rope_type": scaling["kind"], **numbers}
    if "original_length" in scaling:
        rope["original_max_position_embeddings"] = scaling["original_length"]
    weights = llama(hf, rope)
    model = {**LLAMA, "attention": [{"positions": {**ROTARY, "scaling": scaling}}]}
    close(family.d_logits(X, llama_theta(weights), model), weights.logits())
    with pytest.raises(AssertionError):
        close(family.d_logits(X, llama_theta(weights), LLAMA), weights.logits())


def test_positions_that_are_given_and_padding(hf):
    weights = llama(hf)
    positions = np.sort(np.random.default_rng(3).choice(60, LENGTH, replace=False))
    present = (np.arange(LENGTH) < 17).astype(int)
    actual = family.d_logits(X, llama_theta(weights), LLAMA, positions=positions, length=17)
    close(actual[:, :17], weights.logits(position_ids=positions, attention_mask=present)[:, :17])


def test_documents(hf):
    weights, documents = llama(hf), [0] * 9 + [1] * (LENGTH - 9)
    actual = family.d_logits(X, llama_theta(weights), LLAMA, documents=documents)
    close(actual, np.concatenate([weights.logits(X[:9]), weights.logits(X[9:])], axis=1))


def test_mistral(hf):
    config = hf.MistralConfig(**GROUPED, rope_parameters=ROPE, sliding_window=5, tie_word_embeddings=False)
    weights = Weights(hf.MistralForCausalLM(config))
    model = {**LLAMA, "attention": [{"positions": ROTARY, "window": 5}]}
    close(family.d_logits(X, llama_theta(weights), model), weights.logits())


def test_qwen2(hf):
    config = {**GROUPED, "hidden_size": 48, "rope_parameters": ROPE, "tie_word_embeddings": False}
    window = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    weights = Weights(hf.Qwen2ForCausalLM(hf.Qwen2Config(**config, **window)))
    assert weights("model.layers.0.self_attn.q_proj.bias") is not None
    assert weights("model.layers.0.self_attn.o_proj.bias") is None
    narrow = {"positions": ROTARY, "window": 5}
    model = {**LLAMA, "attention": [{"positions": ROTARY}, narrow, narrow]}
    close(family.d_logits(X, llama_theta(weights), model), weights.logits())


def test_qwen3(hf):
    config = hf.Qwen3Config(**GROUPED, rope_parameters=ROPE, tie_word_embeddings=False)
    weights = Weights(hf.Qwen3ForCausalLM(config))
    assert llama_theta(weights).layers[0].attention.gamma_q.shape == (D_ATTN,)
    close(family.d_logits(X, llama_theta(weights), LLAMA), weights.logits())


def test_gemma(hf):
    config = hf.GemmaConfig(**GROUPED, hidden_act="gelu_pytorch_tanh", rope_parameters=ROPE)
    weights = Weights(hf.GemmaForCausalLM(config))
    close(family.d_logits(X, llama_theta(weights, tied=True), GEMMA), weights.logits())


def test_gemma2(hf):
    config = hf.Gemma2Config(
        **GROUPED, query_pre_attn_scalar=11, sliding_window=5, hidden_activation="gelu_pytorch_tanh",
        rope_parameters=ROPE, attn_logit_softcapping=0.5, final_logit_softcapping=0.7,
    )  # fmt: skip
    weights = Weights(hf.Gemma2ForCausalLM(config))
    line = {"positions": ROTARY, "scale": 11**-0.5, "cap": 0.5}
    model = {**GEMMA, "attention": [{**line, "window": 5}, line], "logit_cap": 0.7}
    close(family.d_logits(X, llama_theta(weights, GEMMA2_NORMS, tied=True), model), weights.logits())


def test_gemma3(hf):
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 200.0, "factor": 3.0},
    }
    config = hf.Gemma3TextConfig(
        **GROUPED, query_pre_attn_scalar=11, sliding_window=5, hidden_activation="gelu_pytorch_tanh",
        rope_parameters=rope, layer_types=["sliding_attention", "sliding_attention", "full_attention"],
    )  # fmt: skip
    weights = Weights(hf.Gemma3ForCausalLM(config))
    near = {"positions": {"kind": "rotary", "base": 30.0}, "window": 5, "scale": 11**-0.5}
    far = {"kind": "rotary", "base": 200.0, "scaling": {"kind": "linear", "factor": 3.0}}
    model = {**GEMMA, "attention": [near, near, {"positions": far, "scale": 11**-0.5}]}
    close(family.d_logits(X, llama_theta(weights, GEMMA2_NORMS, tied=True), model), weights.logits())


def test_olmo2(hf):
    config = {**GROUPED, "hidden_size": 48, "rope_parameters": ROPE, "tie_word_embeddings": False}
    weights = Weights(hf.Olmo2ForCausalLM(hf.Olmo2Config(**config)))
    norms = {"norm1_out": "post_attention_layernorm", "norm2_out": "post_feedforward_layernorm"}
    theta = llama_theta(weights, norms)
    assert theta.layers[0].attention.gamma_q.shape == (H * D_ATTN,)
    assert theta.layers[0].attention.gamma_k.shape == (H_KV * D_ATTN,)
    close(family.d_logits(X, theta, LLAMA), weights.logits())


@pytest.mark.parametrize("parallel", [True, False])
def test_gpt_neox(hf, parallel):
    config = hf.GPTNeoXConfig(
        **{**DECODER, "hidden_size": 96}, layer_norm_eps=EPSILON, use_parallel_residual=parallel,
        rope_parameters={**ROPE, "partial_rotary_factor": 0.25},
    )  # fmt: skip
    weights = Weights(hf.GPTNeoXForCausalLM(config))
    layers = []
    for l in range(L):
        name = f"gpt_neox.layers.{l}"
        attention = weights.attention_by_head(f"{name}.attention.query_key_value", f"{name}.attention.dense")
        mlp = weights.mlp(f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
        layers.append(layer(attention, mlp, **weights.norms(name, LLAMA_NORMS)))
    norm, W_e = weights.norm("gpt_neox.final_layer_norm"), weights("gpt_neox.embed_in.weight").T
    theta = SimpleNamespace(W_e=W_e, layers=layers, norm=norm, W_u=weights("lm_head.weight"))
    model = {**PRE_NORM, "positions": None, "attention": [{"positions": {**ROTARY, "share": 0.25}}]}
    model["order"] = "side_by_side" if parallel else None
    close(family.d_logits(X, theta, model), weights.logits())


def test_gptj(hf):
    config = hf.GPTJConfig(
        **SIZES, n_embd=48, n_layer=L, n_head=H, n_inner=61, n_positions=64, rotary_dim=4, layer_norm_epsilon=EPSILON,
        attn_implementation="eager",
    )  # fmt: skip
    weights = Weights(hf.GPTJForCausalLM(config))
    layers = []
    for l in range(L):
        name = f"transformer.h.{l}"
        attention = weights.attention(*(f"{name}.attn.{part}_proj" for part in ("q", "k", "v", "out")))
        norm = weights.norm(f"{name}.ln_1")
        layers.append(layer(attention, weights.mlp(f"{name}.mlp.fc_in", f"{name}.mlp.fc_out"), norm1=norm, norm2=norm))
    (W_u, b_u), W_e = weights.linear("lm_head"), weights("transformer.wte.weight").T
    theta = SimpleNamespace(W_e=W_e, layers=layers, norm=weights.norm("transformer.ln_f"), W_u=W_u, b_u=b_u)
    line = {"positions": {"kind": "rotary", "pairs": "neighbors", "share": 0.5}}
    model = {**PRE_NORM, "positions": None, "attention": [line], "activation": "gelu_tanh", "order": "side_by_side"}
    close(family.d_logits(X, theta, model), weights.logits())


def test_gpt_neo(hf):
    config = hf.GPTNeoConfig(
        **SIZES, hidden_size=42, num_layers=L, num_heads=H, intermediate_size=61, max_position_embeddings=64,
        attention_types=[[["global", "local", "global"], 1]], window_size=5,
        layer_norm_epsilon=EPSILON, attn_implementation="eager",
    )  # fmt: skip
    weights = Weights(hf.GPTNeoForCausalLM(config))
    layers = []
    for l in range(L):
        name = f"transformer.h.{l}"
        attention = weights.attention(*(f"{name}.attn.attention.{part}_proj" for part in ("q", "k", "v", "out")))
        norms, mlp = weights.norms(name, {"norm1": "ln_1", "norm2": "ln_2"}), (f"{name}.mlp.c_fc", f"{name}.mlp.c_proj")
        layers.append(layer(attention, weights.mlp(*mlp), **norms))
    W_e, W_p = weights("transformer.wte.weight").T, weights("transformer.wpe.weight").T
    theta = SimpleNamespace(W_e=W_e, W_p=W_p, layers=layers, norm=weights.norm("transformer.ln_f"), W_u=None)
    lines = [{"scale": 1.0}, {"scale": 1.0, "window": 5}]
    close(family.d_logits(X, theta, {**PRE_NORM, "attention": lines, "activation": "gelu_tanh"}), weights.logits())


@pytest.mark.parametrize("norm_first", [True, False])
def test_opt(hf, norm_first):
    """All sizes but 350m normalize first; 350m last, and its embeddings have another size."""
    config = hf.OPTConfig(
        **SIZES, hidden_size=42, num_hidden_layers=L, num_attention_heads=H, ffn_dim=61, max_position_embeddings=64,
        do_layer_norm_before=norm_first, word_embed_proj_dim=42 if norm_first else 30, attn_implementation="eager",
    )  # fmt: skip
    weights = Weights(hf.OPTForCausalLM(config))
    layers = []
    for l in range(L):
        name = f"model.decoder.layers.{l}"
        attention = weights.attention(*(f"{name}.self_attn.{part}_proj" for part in ("q", "k", "v", "out")))
        norms = weights.norms(name, {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"})
        layers.append(layer(attention, weights.mlp(f"{name}.fc1", f"{name}.fc2"), **norms))
    name = "model.decoder"
    theta = SimpleNamespace(
        W_e=weights(f"{name}.embed_tokens.weight").T, W_p=weights(f"{name}.embed_positions.weight").T, layers=layers,
        W_in=weights(f"{name}.project_in.weight"), W_out=weights(f"{name}.project_out.weight"), W_u=None,
        norm=weights.norm(f"{name}.final_layer_norm") if norm_first else None,
    )  # fmt: skip
    model = {**(PRE_NORM if norm_first else POST_NORM), "epsilon": 1e-5, "activation": "relu", "W_in_reads": "tokens"}
    model["positions"] = {"kind": "learned", "first": 2}
    close(family.d_logits(X, theta, model), weights.logits())


def test_bloom(hf):
    config = hf.BloomConfig(
        **SIZES, hidden_size=42, n_layer=L, n_head=H, layer_norm_epsilon=EPSILON, attn_implementation="eager"
    )
    weights = Weights(hf.BloomForCausalLM(config))
    layers = []
    for l in range(L):
        weights.model.transformer.h[l].mlp.gelu_impl = hf.activations.ACT2FN[
            "gelu_pytorch_tanh"
        ]  # its own has 8 digits
        name = f"transformer.h.{l}"
        attention = weights.attention_by_head(f"{name}.self_attention.query_key_value", f"{name}.self_attention.dense")
        mlp = weights.mlp(f"{name}.mlp.dense_h_to_4h", f"{name}.mlp.dense_4h_to_h")
        layers.append(layer(attention, mlp, **weights.norms(name, LLAMA_NORMS)))
    theta = SimpleNamespace(
        W_e=weights("transformer.word_embeddings.weight").T, layers=layers, norm=weights.norm("transformer.ln_f"),
        embedding_norm=weights.norm("transformer.word_embeddings_layernorm"), W_u=None,
    )  # fmt: skip
    lines = [{"positions": {"kind": "alibi"}}]
    model = {**PRE_NORM, "positions": None, "attention": lines, "activation": "gelu_tanh"}
    close(family.d_logits(X, theta, model), weights.logits())


def test_xlnet_has_transformer_xls_scores(hf):
    config = hf.XLNetConfig(
        vocab_size=N_V, d_model=42, n_layer=L, n_head=H, d_inner=61, attn_type="uni", layer_norm_eps=EPSILON
    )
    weights = Weights(hf.XLNetLMHeadModel(config))
    layers = []
    for l in range(L):
        name = f"transformer.layer.{l}"
        W_q, W_k, W_v, W_r = (weights(f"{name}.rel_attn.{part}").reshape(42, -1).T for part in "qkvr")
        more = {"W_r": W_r.reshape(H, -1, 42), "u": weights(f"{name}.rel_attn.r_w_bias")}
        W_o, v = weights(f"{name}.rel_attn.o").reshape(42, -1), weights(f"{name}.rel_attn.r_r_bias")
        attention = mh_attention(W_q, None, W_k, None, W_v, None, W_o, None, **more, v=v)
        norms = weights.norms(name, {"norm1": "rel_attn.layer_norm", "norm2": "ff.layer_norm"})
        layers.append(layer(attention, weights.mlp(f"{name}.ff.layer_1", f"{name}.ff.layer_2"), **norms))
    W_e = weights("transformer.word_embedding.weight").T
    theta = SimpleNamespace(W_e=W_e, layers=layers, W_u=None, b_u=weights("lm_loss.bias"))
    model = {**POST_NORM, "positions": None, "attention": [{"positions": {"kind": "transformer_xl"}}]}
    close(family.d_logits(X, theta, model), weights.logits())


TYPES = (np.arange(LENGTH) > 13).astype(int)


def bert_head(weights, dense, norm, bias):
    W_f, b_f = weights.linear(dense)
    return {"W_f": W_f, "b_f": b_f, "norm": weights.norm(norm), "b_u": weights(bias), "W_u": None}


def embeddings(weights, name):
    tables = {"W_e": "word_embeddings", "W_p": "position_embeddings", "W_t": "token_type_embeddings"}
    arrays = {field: weights(f"{name}.{table}.weight") for field, table in tables.items()}
    arrays = {field: None if table is None else table.T for field, table in arrays.items()}
    return {**arrays, "embedding_norm": weights.norm(f"{name}.LayerNorm")}


def test_roberta(hf):
    config = {**DECODER, "pad_token_id": 1, "bos_token_id": 0, "type_vocab_size": 2, "layer_norm_eps": EPSILON}
    weights = Weights(hf.RobertaForMaskedLM(hf.RobertaConfig(**config)))
    layers = []
    for l in range(L):
        name = f"roberta.encoder.layer.{l}"
        names = [f"{name}.attention.{part}" for part in ("self.query", "self.key", "self.value", "output.dense")]
        norms = weights.norms(name, {"norm1": "attention.output.LayerNorm", "norm2": "output.LayerNorm"})
        mlp = weights.mlp(f"{name}.intermediate.dense", f"{name}.output.dense")
        layers.append(layer(weights.attention(*names), mlp, **norms))
    head = bert_head(weights, "lm_head.dense", "lm_head.layer_norm", "lm_head.bias")
    theta = SimpleNamespace(**embeddings(weights, "roberta.embeddings"), layers=layers, **head)
    model = {**POST_NORM, "positions": {"kind": "learned", "first": 2}}
    close(family.e_logits(X, theta, model, types=TYPES), weights.logits(token_type_ids=TYPES))
    present = (np.arange(LENGTH) < 17).astype(int)
    close(family.e_logits(X, theta, model, length=17)[:, :17], weights.logits(attention_mask=present)[:, :17])


def test_distilbert(hf):
    config = hf.DistilBertConfig(
        **SIZES, dim=42, n_layers=L, n_heads=H, hidden_dim=61, max_position_embeddings=64, attn_implementation="eager"
    )
    weights = Weights(hf.DistilBertForMaskedLM(config))
    layers = []
    for l in range(L):
        name = f"distilbert.transformer.layer.{l}"
        attention = weights.attention(*(f"{name}.attention.{part}_lin" for part in ("q", "k", "v", "out")))
        norms = weights.norms(name, {"norm1": "sa_layer_norm", "norm2": "output_layer_norm"})
        layers.append(layer(attention, weights.mlp(f"{name}.ffn.lin1", f"{name}.ffn.lin2"), **norms))
    head = bert_head(weights, "vocab_transform", "vocab_layer_norm", "vocab_projector.bias")
    theta = SimpleNamespace(**embeddings(weights, "distilbert.embeddings"), layers=layers, **head)
    close(family.e_logits(X, theta, {**POST_NORM, "epsilon": 1e-12}), weights.logits())


@pytest.mark.parametrize("groups", [1, 2])
def test_albert(hf, groups):
    config = hf.AlbertConfig(
        **DECODER, embedding_size=30, num_hidden_groups=groups, layer_norm_eps=EPSILON, hidden_act="gelu_new",
    )  # fmt: skip
    weights = Weights(hf.AlbertForMaskedLM(config))
    layers = []
    for group in range(groups):
        name = f"albert.encoder.albert_layer_groups.{group}.albert_layers.0"
        attention = weights.attention(*(f"{name}.attention.{part}" for part in ("query", "key", "value", "dense")))
        norms = weights.norms(name, {"norm1": "attention.LayerNorm", "norm2": "full_layer_layer_norm"})
        layers.append(layer(attention, weights.mlp(f"{name}.ffn", f"{name}.ffn_output"), **norms))
    head = bert_head(weights, "predictions.dense", "predictions.LayerNorm", "predictions.bias")
    W_in, b_in = weights.linear("albert.encoder.embedding_hidden_mapping_in")
    theta = SimpleNamespace(**embeddings(weights, "albert.embeddings"), W_in=W_in, b_in=b_in, layers=layers, **head)
    model = {**POST_NORM, "activation": "gelu_tanh", "L": L}
    close(family.e_logits(X, theta, model, types=TYPES), weights.logits(token_type_ids=TYPES))


@pytest.mark.parametrize(("projection", "tied"), [("relu", True), ("gated-gelu", False)])
def test_t5(hf, projection, tied):
    buckets = {"relative_attention_num_buckets": 10, "relative_attention_max_distance": 17}
    config = hf.T5Config(
        vocab_size=N_V, d_model=42, d_kv=D_ATTN, d_ff=61, num_layers=2, num_decoder_layers=3, num_heads=H,
        feed_forward_proj=projection, tie_word_embeddings=tied, scale_decoder_outputs=tied, layer_norm_epsilon=EPSILON,
        **buckets, attn_implementation="eager",
    )  # fmt: skip
    weights = Weights(hf.T5ForConditionalGeneration(config))

    def mlp(name):
        up = "wi_1" if projection == "gated-gelu" else "wi"
        return weights.mlp(f"{name}.DenseReluDense.{up}", f"{name}.DenseReluDense.wo", f"{name}.DenseReluDense.wi_0")

    def attention(name):
        return weights.attention(*(f"{name}.{part}" for part in "qkvo"))

    encoder, decoder = [], []
    for l in range(2):
        name = f"encoder.block.{l}.layer"
        norms = {f"norm{i + 1}": weights.norm(f"{name}.{i}.layer_norm") for i in range(2)}
        encoder.append(layer(attention(f"{name}.0.SelfAttention"), mlp(f"{name}.1"), **norms))
    for l in range(3):
        name = f"decoder.block.{l}.layer"
        norms = {f"norm{i + 3}": weights.norm(f"{name}.{i}.layer_norm") for i in range(3)}
        parts = {"self_attention": f"{name}.0.SelfAttention", "cross_attention": f"{name}.1.EncDecAttention"}
        parts = {field: attention(part) for field, part in parts.items()}
        decoder.append(SimpleNamespace(**parts, mlp=mlp(f"{name}.2"), **norms))
    table = "block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    theta = SimpleNamespace(
        W_e=weights("shared.weight").T, encoder=encoder, decoder=decoder,
        encoder_distances=weights(f"encoder.{table}").T, decoder_distances=weights(f"decoder.{table}").T,
        encoder_norm=weights.norm("encoder.final_layer_norm"), decoder_norm=weights.norm("decoder.final_layer_norm"),
        W_u=None if tied else weights("lm_head.weight"),
    )  # fmt: skip
    line = {"positions": {"kind": "distances", "num_buckets": 10, "max_distance": 17}, "scale": 1.0}
    model = {
        **family.PAPER, "positions": None, "norm": "rms_norm", "epsilon": EPSILON, "order": "norm_first",
        "attention": [line], "activation": "gelu_tanh" if projection == "gated-gelu" else "relu",
        "logit_scale": "rsqrt_d_e" if tied else 1.0,
    }  # fmt: skip
    z, x = X[:19], X[::-1].copy()
    close(family.ed_logits(z, x, theta, model), weights.logits(z, decoder_input_ids=x))
    present = (np.arange(19) < 13).astype(int)
    expected = weights.logits(z, decoder_input_ids=x, attention_mask=present)
    close(family.ed_logits(z, x, theta, model, z_length=13), expected)
