"""LLaDA: Llama's lines as Algorithm 9, for masked diffusion; its configuration is OLMo's of 2024."""

from algorithms import LLADA
from training.interchange.description import Architecture, Field, Need, fields_of, written
from training.interchange.mapping import rows

KIND = "llada"
FIXED = {
    "block_type": "llama",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "attention_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "input_emb_norm": False,
    "scale_logits": False,
}
"""Fields that have these values in all published files."""
KINDS = {
    KIND: Architecture(
        "e",
        KIND,
        LLADA,
        [
            *written(model_type=KIND, architectures=["LLaDAModelLM"], vocab_size=lambda c: c.N_V),
            *(Need(name, value, "other lines than LLaDA's") for name, value in FIXED.items()),
            *written(**FIXED),
            *fields_of(
                "N_V l_max L H d_e d_mlp",
                "embedding_size|vocab_size max_sequence_length n_layers n_heads d_model mlp_hidden_size",
            ),
            Field("n_kv_heads", "H_kv", lambda found: found["H"]),
            Field("activation_type", "mlp.activation", "silu"),
            Field("rms_norm_eps", "norm.epsilon", 1e-5),
            Field("rope_theta", "attention.positions.base", 10_000.0),
            Field("weight_tying", "unembedding.tied", False),
        ],
        {
            "model.transformer.wte.weight": "W_e",
            **rows(
                "model.transformer.blocks.#",
                "attn_norm ff_norm q_proj k_proj v_proj attn_out ff_proj up_proj ff_out",
                "layers",
                "norm1.* norm2.* attention.heads.*_q attention.heads.*_k attention.heads.*_v attention.*_o "
                "mlp.*_gate mlp.*_mlp1 mlp.*_mlp2",
            ),
            "model.transformer.ln_f.*": "encoder_norm.*",
            "model.transformer.ff_out.weight": "W_u",
        },
        prefix="model.",
    )
}
"""By model_type."""
