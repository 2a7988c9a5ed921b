"""Algorithm 8 as in the transformers library: BART, Marian (OPUS-MT) and T5.

T5 is its first version, or version 1.1 (Flan-T5) with its gated MLP.
"""

from collections.abc import Sequence
from typing import Any

from algorithms import BART, MARIAN, T5
from training.interchange import description
from training.interchange.description import Architecture, Field, Fields, Model, fields_of, value_at, written
from training.interchange.mapping import HEADS, HIDDEN, Table, each, rows

NAMES = {"bart": "BartForConditionalGeneration", "marian": "MarianMTModel"}
VARIANTS = {"bart": BART, "marian": MARIAN}
STEPS = {
    "encoder": [("attention", "norm1"), ("mlp", "norm2")],
    "decoder": [("self_attention", "norm3"), ("cross_attention", "norm4"), ("mlp", "norm5")],
}
"""The steps of a layer, and their norms."""
MODULES = "{2}.q_proj {2}.k_proj {2}.v_proj {2}.out_proj {2}_layer_norm", "fc1 fc2 final_layer_norm"
T5_NAME, T5_HEAD = "T5ForConditionalGeneration", "lm_head.weight"


def layer_rows(
    prefix: str, part: str, modules: tuple[str, str], names: tuple[str, str], ours: tuple[str, str] = (HEADS, HIDDEN)
) -> dict[str, str]:
    """Return the rows of an encoder's or decoder's layers by the modules, and ours, of attentions and of MLPs.

    Each ends with its norm. {0} and {1} are the step's number, from 0 or 1 on, {2} is the name of self- or
    cross-attention.
    """
    found: dict[str, str] = {}
    for i, (step, norm) in enumerate(STEPS[part]):
        its_names = modules[step == "mlp"].format(i, i + 1, names[step == "cross_attention"])
        found |= rows(prefix, its_names, part, f"{each(step + '.{}', ours[step == 'mlp'])} {norm}.*")
    return found


def _read(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    fields.named(NAMES[kind])
    for name, size in (("attention_heads", "H"), ("ffn_dim", "d_mlp")):
        fields.require(f"decoder_{name}", found[size], f"a decoder with other {name} than the encoder")
    for flag in ("normalize_before", "add_final_layer_norm", "add_bias_logits"):
        fields.require(flag, False, "another arrangement of norms and biases")
    shared = kind == "bart" or (kind == "marian" and fields.flag("share_encoder_decoder_embeddings", True))
    found["N_V"] = N_V_z = fields.integer("vocab_size", 50265)
    if not shared:
        found["N_V"] = fields.integer("decoder_vocab_size", N_V_z)
    found["N_V_z"] = None if shared else N_V_z
    found["unembedding.bias"] = "final_logits_bias" in names


def _write(model: Model, state: dict[str, Any], kind: str) -> list[str]:
    return (
        [] if kind == "marian" else description.unlike(model.config.N_V_z, None, "separate vocabulary for the context")
    )


def _tensors(model: Model, state: dict[str, Any], kind: str) -> Table:
    c, of_encoder, of_decoder = model.config, "model.encoder", "model.decoder"
    copies = [f"{part}.embed_tokens.weight" for part in (of_encoder, of_decoder)]
    table: dict[str, Any] = {f"model.shared.weight|{copies[0]}|{copies[1]}": "W_e"}
    if c.N_V_z is not None:
        table = {copies[0]: "context.W_e", copies[1]: "W_e"}
    for part, ours in ((of_encoder, "context."), (of_decoder, "")) if kind == "bart" else ():
        table[f"{part}.embed_positions.weight"] = f"{ours}W_p"
        table[f"{part}.layernorm_embedding.*"] = f"{ours}embedding_norm.*"
    table["final_logits_bias"] = "[b_u]" if c.variant.unembedding.bias else (1, c.N_V)
    for part in STEPS:
        table |= layer_rows(f"model.{part}.layers.#", part, MODULES, ("self_attn", "encoder_attn"))
    return {**table, "lm_head.weight": "W_u"}


def _architecture(kind: str) -> Architecture:
    fields = [
        *written(model_type=kind, architectures=[NAMES[kind]], is_encoder_decoder=True),
        *fields_of(
            "l_max L_enc L_dec H d_e d_mlp",
            "max_position_embeddings encoder_layers decoder_layers encoder_attention_heads d_model encoder_ffn_dim",
            *(1024, 12, 12, 16, 1024, 4096),
        ),
        *written(decoder_attention_heads=lambda c: c.H, decoder_ffn_dim=lambda c: c.d_mlp),
        Field("activation_function", "mlp.activation", "gelu"),
        Field("scale_embedding", "embedding.scaled", False),
        Field("tie_word_embeddings", "unembedding.tied", True),
        *written(dropout=0.0, attention_dropout=0.0, activation_dropout=0.0),
        *written(pad_token_id=lambda c: c.N_V - 1),
        *written(decoder_start_token_id=lambda c: c.N_V - 2, eos_token_id=lambda c: c.N_V - 1),
        *written(forced_eos_token_id=None),
        *written(vocab_size=lambda c: c.N_V_z or c.N_V),
    ]
    if kind == "marian":
        fields += written(
            decoder_vocab_size=lambda c: c.N_V, share_encoder_decoder_embeddings=lambda c: c.N_V_z is None
        )
    ignored = () if kind == "bart" else ("*embed_positions.weight",)  # sinusoids, which we compute
    return Architecture("ed", kind, VARIANTS[kind], fields, _tensors, _read, _write, prefix="model.", ignored=ignored)


def _read_t5(fields: Fields, found: dict[str, Any], names: Sequence[str], kind: str) -> None:
    fields.named(T5_NAME, "T5WithLMHeadModel")
    said = str(fields.get("feed_forward_proj", "relu"))
    gate, _, activation = said.rpartition("-")
    if gate not in ("", "gated"):
        fields.needs.append(f"the MLP of feed_forward_proj = {said!r}")
    if said == "gated-gelu":  # always means the tanh approximation
        activation = "gelu_new"
    mlp = fields.inner({"feed_forward_proj": activation})
    found |= {"mlp.activation": mlp.activation("feed_forward_proj", "relu"), "mlp.gated": bool(gate)}
    # transformers 5 declares every model tied; version 1.1 is recognized by its unscaled logits, or its own matrix
    scaled = fields.flag("scale_decoder_outputs", fields.flag("tie_word_embeddings", True))
    found |= {"unembedding.scaled": scaled, "unembedding.tied": scaled or T5_HEAD not in names}
    found["d_mid"] = found["d_attn"]


def _mlp_of_t5(config: Any) -> str:
    """Return the nonlinearity, and whether it is of a gate."""
    return (
        f"{'gated-' if value_at(config, 'mlp.gated') else ''}{description.theirs(value_at(config, 'mlp.activation'))}"
    )


def _t5_tensors(model: Model, state: dict[str, Any], kind: str) -> Table:
    found: dict[str, Any] = {"shared.weight|encoder.embed_tokens.weight|decoder.embed_tokens.weight": "W_e"}
    found[T5_HEAD] = "W_u"
    gated = value_at(model.config, "mlp.gated")
    attention = "layer.{0}.{2}.q layer.{0}.{2}.k layer.{0}.{2}.v layer.{0}.{2}.o layer.{0}.layer_norm"
    hidden, mlp = ("wi_0 wi_1 wo", "*_gate *_mlp1 *_mlp2") if gated else ("wi wo", HIDDEN)
    hidden = f"{each('layer.{{0}}.DenseReluDense.{}', hidden)} layer.{{0}}.layer_norm"
    names = ("SelfAttention", "EncDecAttention")
    for part in STEPS:
        found[f"{part}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = f"{part}_distances"
        found |= layer_rows(f"{part}.block.#", part, (attention, hidden), names, (HEADS, mlp))
        found[f"{part}.final_layer_norm.*"] = f"{part}_norm.*"
    return found


KINDS = {
    **{kind: _architecture(kind) for kind in VARIANTS},
    "t5": Architecture(
        "ed",
        "t5",
        T5,
        [
            *written(model_type="t5", architectures=[T5_NAME], is_encoder_decoder=True),
            *fields_of(
                "N_V l_max L_enc H d_e d_mlp d_attn",
                "vocab_size n_positions num_layers num_heads d_model d_ff d_kv",
                *(32128, 512, 6, 8, 512, 2048, 64),
            ),
            Field("num_decoder_layers", "L_dec", lambda found: found["L_enc"]),
            Field("relative_attention_num_buckets", "attention.positions.buckets", 32),
            Field("relative_attention_max_distance", "attention.positions.farthest", 128),
            Field("layer_norm_epsilon", "norm.epsilon", 1e-6),
            *written(feed_forward_proj=_mlp_of_t5, tie_word_embeddings=lambda c: c.tied),
            *written(scale_decoder_outputs=lambda c: c.tied and c.variant.unembedding.scaled, dropout_rate=0.0),
            *written(pad_token_id=lambda c: c.N_V - 1, decoder_start_token_id=lambda c: c.N_V - 2),
            *written(eos_token_id=lambda c: c.N_V - 1),
        ],
        _t5_tensors,
        _read_t5,
        _write,
        # an unused tensor in old files
        ignored=("decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",),
    ),
}
"""By model_type."""
