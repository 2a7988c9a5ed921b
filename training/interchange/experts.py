"""The mixtures of experts of Mixtral, Qwen 3, OLMoE, MiniMax-M2, Llama 4, gpt-oss, DeepSeek, Granite, Kimi in files."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from algorithms.lines import MLP, Experts
from training.interchange.description import Field, Fields, fields_of

SIGMOIDS = {"scores": "sigmoid", "choice_bias": True}
ALPHA = 1.702
"""The factor in the sigmoid of gpt-oss's nonlinearity, the only one that our ``gelu_sigmoid`` has."""
OURS = "*_gate *_mlp1 *_mlp2"


class Mixture(NamedTuple):
    """Description and storage of the experts of a kind of model."""

    n: tuple[str, int] = ("num_experts", 64)  # the field with the number of experts, and its default
    k: int = 8  # the default of num_experts_per_tok
    width: str = "moe_intermediate_size"  # the field with the hidden units of an expert
    renormalized: bool = False  # whether weights are divided by their sum, unless a field decides
    fields: Sequence[Field] = ()  # further fields, by the attributes of `Experts`
    module: str = "mlp"  # in a layer
    router: str = "gate"  # in that module
    choice: str = "gate.e_score_correction_bias"  # in that module: what is added to the scores of the choice
    shared: str = "shared_experts"  # in that module: what every token takes
    parts: str = "gate_proj up_proj down_proj"  # of an expert: gate, first and second matrix
    of_shared: str = "gate_proj up_proj down_proj"  # the same of what every token takes
    chosen: str = "num_experts_per_tok"  # the field with the number of experts that a token takes
    others: Mapping[str, Any] = {}  # attributes of `Experts` that no field decides
    # the names of two tensors that have all experts: of gate and first matrix, one below the other, and of the second
    stacked: str = ""
    transposed: bool = False  # whether these have our rows as columns
    fused: bool = False  # whether one tensor has all experts, as in gpt-oss, which also clips and has biases


CHOSEN, CLIP = Field("norm_topk_prob", "renormalized", False), Field("swiglu_limit", "clip", 7.0)
GROUPS = "factor groups chosen_groups shared", "routed_scaling_factor n_group topk_group n_shared_experts"
OF_V2 = fields_of(*GROUPS, 1.0, 1, 1, 2)
OF_V3 = [Field("norm_topk_prob", "renormalized", True), *fields_of(*GROUPS, 2.5, 8, 4, 1)]
OF_LITE = [Field("norm_topk_prob", "renormalized", True), *fields_of(*GROUPS, 1.8, 1, 1, 1)]
OF_KIMI = [
    Field("moe_renormalize|norm_topk_prob", "renormalized", True),
    *fields_of(
        GROUPS[0],
        "routed_scaling_factor num_expert_group|n_group topk_group num_shared_experts|n_shared_experts",
        *(2.446, 1, 1, 1),
    ),
]
_GRANITE = Mixture(
    ("num_local_experts", 8),
    2,
    "intermediate_size",
    renormalized=True,
    module="block_sparse_moe",
    router="router.layer",
    stacked="input_linear.weight output_linear.weight",
)
SHARED = "shared_intermediate_size"
"""The field with the hidden units of what every token takes, in Granite."""
MIXTURES = {
    "mixtral": Mixture(
        ("num_local_experts", 8), 2, "intermediate_size", renormalized=True, module="block_sparse_moe", parts="w1 w3 w2"
    ),
    "qwen3_moe": Mixture(("num_experts", 128), fields=[CHOSEN]),
    "qwen3_next": Mixture(
        ("num_experts", 512),
        10,
        fields=[Field("norm_topk_prob", "renormalized", True)],
        shared="shared_expert",
        others={"shared_gate": True},
    ),
    "qwen2_moe": Mixture(("num_experts", 60), 4, fields=[CHOSEN], shared="shared_expert", others={"shared_gate": True}),
    "glm4_moe": Mixture(
        ("n_routed_experts", 128),
        fields=[Field("norm_topk_prob", "renormalized", True), *fields_of(*GROUPS, 1.0, 1, 1, 1)],
        others=SIGMOIDS,
    ),
    "qwen3_5_moe_text": Mixture(
        ("num_experts", 256), renormalized=True, shared="shared_expert", others={"shared_gate": True}
    ),
    "ernie4_5_moe": Mixture(
        ("moe_num_experts", 64),
        6,
        renormalized=True,
        fields=[Field("moe_num_shared_experts", "shared", 2)],
        choice="gate.moe_statics.e_score_correction_bias|moe_statics.e_score_correction_bias",
        chosen="moe_k",
        others={"choice_bias": True},
    ),
    "olmoe": Mixture(width="intermediate_size", fields=[CHOSEN]),
    "minimax_m2": Mixture(
        ("num_local_experts", 256),
        width="intermediate_size",
        renormalized=True,
        module="block_sparse_moe",
        choice="e_score_correction_bias",
        parts="w1 w3 w2",
        others=SIGMOIDS,
    ),
    "llama4_text": Mixture(
        ("num_local_experts", 16),
        1,
        "intermediate_size",
        module="feed_forward",
        router="router",
        others={"scores": "sigmoid", "weighted": "inputs", "shared": 1},
        stacked="experts.gate_up_proj experts.down_proj",
        transposed=True,
    ),
    "gpt_oss": Mixture(
        ("num_local_experts", 128),
        4,
        "intermediate_size",
        renormalized=True,
        fields=[CLIP],
        router="router",
        fused=True,
    ),
    "deepseek_v2": Mixture(("n_routed_experts", 64), 2, fields=OF_V2),
    **dict.fromkeys(("granitemoe", "granitemoeshared", "granitemoehybrid"), _GRANITE),
    "kimi_linear": Mixture(
        ("num_experts", 256),
        fields=OF_KIMI,
        chosen="num_experts_per_token",
        module="block_sparse_moe",
        parts="w1 w3 w2",
        others=SIGMOIDS,
    ),
    "glm4_moe_lite": Mixture(("n_routed_experts", 64), 4, fields=OF_LITE, others=SIGMOIDS),
    "deepseek_v3": Mixture(("n_routed_experts", 256), fields=OF_V3, others=SIGMOIDS),
}
"""By model_type."""


def read_mixture(fields: Fields, own: Mixture, mlp: MLP, **others: Any) -> Experts:
    """Return the line of a mixture; `mlp`: that of an expert; `others`: attributes that have these values."""
    name, default = own.n
    fields.require("mlp_only_layers", [], "layers without experts")
    fields.require("decoder_sparse_step", 1, "layers without experts")
    if own.fused:
        fields.require("swiglu_alpha", ALPHA, "another nonlinearity")
        mlp = mlp.but(activation="gelu_sigmoid", biases=True)
    found = {field: getattr(mlp, field) for field in ("activation", "gated", "biases", "clip", "normalize_output")}
    found["renormalized"] = own.renormalized
    for field in own.fields:
        field.read(fields, found)
    balance = fields.number("router_aux_loss_coef", 0.001) if fields.flag("output_router_logits", False) else 0.0
    return Experts(
        **(found | {**own.others, **others}),
        n=fields.integer(name if fields.has(name) else "num_local_experts", default, limit=1 << 16),
        k=fields.integer(own.chosen if fields.has(own.chosen) else "num_experts_per_tok", own.k),
        router_bias=own.fused,
        balance=balance,
    )


def shared_experts(fields: Fields, name: str, d_mlp: int, default: int = 0) -> dict[str, int]:
    """Return the attributes of `Experts` on what every token takes, by the field with its hidden units."""
    rows = fields.integer(name, default, least=0)
    return {"shared": 1, "d_shared": rows} if rows % d_mlp else {"shared": rows // d_mlp}


def shared_units(line: Any, d_mlp: int) -> int:
    """Return the hidden units of what every token takes."""
    return getattr(line, "d_shared", None) or d_mlp * getattr(line, "shared", 0)


def of_shared_mlp(ours: str) -> dict[str, str]:
    """Return the tensors of what every token takes in a layer of Granite."""
    shared = "model.layers.#.shared_mlp"
    return {
        f"{shared}.input_linear.weight": f"{ours}.W_gate+W_mlp1",
        f"{shared}.output_linear.weight": f"{ours}.W_mlp2",
    }


def mixture_fields(own: Mixture, line: Any, d_mlp: int) -> dict[str, Any]:
    """Return the fields that `read_mixture` reads; none for another line, which differs when they are read back."""
    if not isinstance(line, Experts):
        return {own.n[0]: 1}
    state: dict[str, Any] = {own.n[0]: line.n, own.chosen: line.k, own.width: d_mlp}
    state |= {field.names.partition("|")[0]: field.write(line) for field in own.fields}
    if own.fused:
        state |= {"hidden_act": "silu", "swiglu_alpha": ALPHA}
    return state | {"output_router_logits": line.balance > 0, "router_aux_loss_coef": line.balance}


def mixture_table(own: Mixture) -> dict[str, str]:
    """Return the tensors of the mixture of a layer."""
    module, ours = f"model.layers.#.{own.module}", "layers.mlp"
    found = {
        f"{module}.{own.router}.*": f"{ours}.*_r",
        "|".join(f"{module}.{name}" for name in own.choice.split("|")): f"[{ours}.b_choice]"
        if "moe_statics" in own.choice
        else f"{ours}.b_choice",
        f"{module}.{own.shared}_gate.weight": f"{ours}.w_s",
    }
    if own.fused:
        for name, leaves in (("gate_up_proj", "_gate+{}_mlp1"), ("down_proj", "_mlp2")):
            for suffix, letter in (("", "W"), ("_bias", "b")):
                found[f"{module}.experts.{name}{suffix}"] = f"{ours}.experts.{letter}{leaves.format(letter)}"
        return found
    if own.stacked:
        axes, leaves = "^" if own.transposed else "", ("W_gate&W_mlp1", "W_mlp2/W_mlp2")
        of_all = {name: f"{axes}{ours}.experts.{leaf}" for name, leaf in zip(own.stacked.split(), leaves, strict=True)}
        return found | {f"{module}.{name}": leaf for name, leaf in of_all.items()}
    for name, shared, leaf in zip(own.parts.split(), own.of_shared.split(), OURS.split(), strict=True):
        found |= {f"{module}.experts.@.{name}.*": f"{ours}.experts.{leaf}"}
        found |= {f"{module}.{own.shared}.{shared}.*": f"{ours}.shared.{leaf}"}
    return found
