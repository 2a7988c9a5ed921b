"""Mixtures of experts in files: of Mixtral, Qwen, OLMoE, MiniMax-M2, Llama 4, gpt-oss, DeepSeek, Granite, Kimi, ….

Also the first layers of some of these, which have an MLP instead.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from algorithms.lines import MLP, Experts
from training.interchange.description import Field, Fields, fields_of, theirs

ALPHA = 1.702
"""The factor in the sigmoid of gpt-oss's nonlinearity, the only one that our ``gelu_sigmoid`` has."""
OURS = "*_gate *_mlp1 *_mlp2"
DENSE, SPARSE = "dense", "sparse"


class Mixture(NamedTuple):
    """A kind's description and storage of its experts, as a `Field`."""

    n: tuple[str, int] = ("num_experts", 64)  # the field with the number of experts, and its default
    k: int = 8  # the default of num_experts_per_tok
    width: str = "moe_intermediate_size"  # the field with the hidden units of an expert
    d_mlp: int | None = None  # its default
    renormalized: bool = False  # whether weights are divided by their sum, unless a field decides
    fields: Sequence[Field] = ()  # further fields, by the attributes of `Experts`
    module: str = "mlp"  # in a layer
    router: str = "gate"  # in that module
    choice: str = "gate.e_score_correction_bias"  # in that module: what is added to the scores of the choice
    shared: str = "shared_experts"  # in that module: what every token takes
    # the field with the hidden units of what every token takes, if it is not their number, and its default
    shared_width: tuple[str, int] = ("", 0)
    parts: str = "gate_proj up_proj down_proj"  # of an expert: gate, first and second matrix
    chosen: str = "num_experts_per_tok"  # the field with the number of experts that a token takes
    others: Mapping[str, Any] = {}  # attributes of `Experts` that no field decides
    # the names of two tensors that have all experts: of gate and first matrix, one below the other, and of the second
    stacked: str = ""
    transposed: bool = False  # whether these have our rows as columns
    fused: bool = False  # whether one tensor has all experts, as in gpt-oss, which also clips and has biases

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add the mixture, and the hidden units of an expert, to what was found."""
        found["d_mlp"] = d_mlp = fields.integer(self.width, self.d_mlp)
        for name, value in (("mlp_only_layers", []), ("decoder_sparse_step", 1)):
            fields.require(name, value, "layers without experts")
        mlp, (name, default), (of_shared, units) = plain_mlp(fields), self.n, self.shared_width
        if self.fused:
            fields.require("swiglu_alpha", ALPHA, "another nonlinearity")
            mlp = mlp.but(activation="gelu_sigmoid", biases=True)
        line = {field: getattr(mlp, field) for field in ("activation", "gated", "biases", "clip", "normalize_output")}
        line["renormalized"] = self.renormalized
        for field in self.fields:
            field.read(fields, line)
        line |= self.others
        if of_shared:
            rows = fields.integer(of_shared, units, least=0)
            line |= {"shared": 1, "d_shared": rows} if rows % d_mlp else {"shared": rows // d_mlp}
        found["mlp"] = Experts(
            **line,
            n=fields.integer(name if fields.has(name) else "num_local_experts", default, limit=1 << 16),
            k=fields.integer(self.chosen if fields.has(self.chosen) else "num_experts_per_tok", self.k),
            router_bias=self.fused,
            balance=fields.number("router_aux_loss_coef", 0.001) if fields.flag("output_router_logits", False) else 0.0,
        )

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json; another line than experts differs when they are read back."""
        mlps, d_mlp = config.variant.mlps_in_turn, config.d_mlp
        line: Any = next((mlp for mlp in mlps if isinstance(mlp, Experts)), mlps[0])
        state["hidden_act"] = "silu" if self.fused else theirs(getattr(line, "activation", None) or "gelu")
        if self.shared_width[0]:
            state[self.shared_width[0]] = getattr(line, "d_shared", None) or d_mlp * getattr(line, "shared", 0)
        if not isinstance(line, Experts):
            state[self.n[0]] = 1
            return
        state |= {self.n[0]: line.n, self.chosen: line.k, self.width: d_mlp}
        state |= {field.names.partition("|")[0]: field.write(line) for field in self.fields}
        state |= {"swiglu_alpha": ALPHA} if self.fused else {}
        state |= {"output_router_logits": line.balance > 0, "router_aux_loss_coef": line.balance}

    @property
    def table(self) -> dict[str, str]:
        """The tensors of the mixture of a layer."""
        module, ours = f"model.layers.#.{self.module}", "layers.mlp"
        b_choice = f"[{ours}.b_choice]" if "moe_statics" in self.choice else f"{ours}.b_choice"
        found = {
            f"{module}.{self.router}.*": f"{ours}.*_r",
            "|".join(f"{module}.{name}" for name in self.choice.split("|")): b_choice,
            f"{module}.{self.shared}_gate.weight": f"{ours}.w_s",
        }
        if self.fused:
            for name, leaves in (("gate_up_proj", "_gate+{}_mlp1"), ("down_proj", "_mlp2")):
                for suffix, letter in (("", "W"), ("_bias", "b")):
                    found[f"{module}.experts.{name}{suffix}"] = f"{ours}.experts.{letter}{leaves.format(letter)}"
            return found
        if self.stacked:
            axes, leaves = "^" if self.transposed else "", ("W_gate&W_mlp1", "W_mlp2/W_mlp2")
            of_all = zip(self.stacked.split(), leaves, strict=True)
            return found | {f"{module}.{name}": f"{axes}{ours}.experts.{leaf}" for name, leaf in of_all}
        for name, shared, leaf in zip(self.parts.split(), Mixture().parts.split(), OURS.split(), strict=True):
            found |= {f"{module}.experts.@.{name}.*": f"{ours}.experts.{leaf}"}
            found |= {f"{module}.{self.shared}.{shared}.*": f"{ours}.shared.{leaf}"}
        return found


class First(NamedTuple):
    """The fields of the first layers, which have an MLP in place of experts; as a `Field`."""

    n: int  # the default of their number
    d_mlp: int  # the default of their hidden units
    name: str = "first_k_dense_replace"  # of the field with their number

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add their MLPs to what was found."""
        types, L = fields.items("mlp_layer_types", None), found["L"]
        n = fields.integer(self.name, self.n, least=0)
        n = types.count(DENSE) if isinstance(types, list) else n
        if types is not None and types != [DENSE] * n + [SPARSE] * (len(types) - n):
            fields.needs.append(f"layers without experts after others (mlp_layer_types = {str(types)[:60]})")
        if n >= L:
            fields.needs.append(f"no layer with experts ({self.name} = {n}, num_hidden_layers = {L})")
            n = 0
        found["first"] = (plain_mlp(fields).but(d_mlp=fields.integer("intermediate_size", self.d_mlp)),) * n

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json."""
        first, L = config.variant.first, config.L
        state |= {self.name: len(first), "num_nextn_predict_layers": 0}
        state["mlp_layer_types"] = [DENSE] * len(first) + [SPARSE] * (L - len(first))
        state["intermediate_size"] = first[0].d_mlp if first else config.d_mlp


def plain_mlp(fields: Fields) -> MLP:
    """Return the MLP of a first layer, and of an expert."""
    return MLP(activation=fields.activation("hidden_act", "silu"), gated=True, biases=fields.flag("mlp_bias", False))


SHARED = "shared_intermediate_size"
"""Granite's field of the hidden units of the shared expert."""


def of_shared_mlp(ours: str) -> dict[str, str]:
    """Return the tensors of what every token takes in a layer of Granite."""
    shared = "model.layers.#.shared_mlp"
    return {
        f"{shared}.input_linear.weight": f"{ours}.W_gate+W_mlp1",
        f"{shared}.output_linear.weight": f"{ours}.W_mlp2",
    }


QWEN = "shared_expert_intermediate_size"
_SIGMOIDS = {"scores": "sigmoid", "choice_bias": True}
_qwen = functools.partial(Mixture, shared="shared_expert", others={"shared_gate": True})
_CHOSEN = Field("norm_topk_prob", "renormalized", False)
_RENORMALIZED = _CHOSEN._replace(default=True)
_GROUPS = "factor groups chosen_groups shared", "routed_scaling_factor n_group topk_group n_shared_experts"
_OF_KIMI = "routed_scaling_factor num_expert_group|n_group topk_group num_shared_experts|n_shared_experts"
GRANITE = Mixture(
    ("num_local_experts", 8),
    2,
    "intermediate_size",
    renormalized=True,
    module="block_sparse_moe",
    router="router.layer",
    shared_width=(SHARED, 1024),
    stacked="input_linear.weight output_linear.weight",
)
_OF_V3 = Mixture(
    ("n_routed_experts", 256), fields=[_RENORMALIZED, *fields_of(*_GROUPS, 2.5, 8, 4, 1)], others=_SIGMOIDS
)
NEMOTRON = Mixture(
    ("n_routed_experts", 8),
    2,
    d_mlp=7688,
    fields=[
        Field("mlp_hidden_act", "activation", "relu2"),
        *(
            _RENORMALIZED,
            *fields_of("factor groups chosen_groups", "routed_scaling_factor n_group topk_group", 1.0, 1, 1),
        ),
    ],
    shared_width=("moe_shared_expert_intermediate_size", 7688),
    others={**_SIGMOIDS, "gated": False},
)
MIXTURES = {
    "mixtral": GRANITE._replace(router="gate", parts="w1 w3 w2", stacked="", shared_width=("", 0)),
    "qwen3_moe": Mixture(("num_experts", 128), fields=[_CHOSEN]),
    "qwen3_next": _qwen(("num_experts", 512), 10, d_mlp=512, shared_width=(QWEN, 512), fields=[_RENORMALIZED]),
    "qwen2_moe": _qwen(("num_experts", 60), 4, d_mlp=1408, shared_width=(QWEN, 5632), fields=[_CHOSEN]),
    "qwen3_5_moe_text": _qwen(("num_experts", 256), d_mlp=512, shared_width=(QWEN, 512), renormalized=True),
    "glm4_moe": Mixture(
        ("n_routed_experts", 128),
        d_mlp=1408,
        fields=[_RENORMALIZED, *fields_of(*_GROUPS, 1.0, 1, 1, 1)],
        others=_SIGMOIDS,
    ),
    "ernie4_5_moe": Mixture(
        ("moe_num_experts", 64),
        6,
        d_mlp=1536,
        renormalized=True,
        fields=[Field("moe_num_shared_experts", "shared", 2)],
        choice="gate.moe_statics.e_score_correction_bias|moe_statics.e_score_correction_bias",
        chosen="moe_k",
        others={"choice_bias": True},
    ),
    "olmoe": Mixture(width="intermediate_size", fields=[_CHOSEN]),
    "minimax_m2": Mixture(
        ("num_local_experts", 256),
        width="intermediate_size",
        renormalized=True,
        module="block_sparse_moe",
        choice="e_score_correction_bias",
        parts="w1 w3 w2",
        others=_SIGMOIDS,
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
        fields=[Field("swiglu_limit", "clip", 7.0)],
        router="router",
        fused=True,
    ),
    "granitemoe": GRANITE._replace(shared_width=("", 0)),
    "granitemoeshared": GRANITE._replace(shared_width=(SHARED, 0)),
    "kimi_linear": Mixture(
        ("num_experts", 256),
        fields=[
            Field("moe_renormalize|norm_topk_prob", "renormalized", True),
            *fields_of(_GROUPS[0], _OF_KIMI, 2.446, 1, 1, 1),
        ],
        chosen="num_experts_per_token",
        module="block_sparse_moe",
        parts="w1 w3 w2",
        others=_SIGMOIDS,
    ),
    "deepseek_v2": Mixture(("n_routed_experts", 64), 2, fields=fields_of(*_GROUPS, 1.0, 1, 1, 2)),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32"), _OF_V3),
    "glm_moe_dsa": _OF_V3._replace(fields=[_RENORMALIZED, *fields_of(*_GROUPS, 2.5, 1, 1, 1)]),
    "lfm2_moe": Mixture(
        ("num_experts", 32),
        4,
        d_mlp=1792,
        fields=[
            _RENORMALIZED,
            *(Field("use_expert_bias", "choice_bias", True), Field("routed_scaling_factor", "factor", 1.0)),
        ],
        others={"scores": "sigmoid"},
        module="feed_forward",
        choice="expert_bias",
        parts="w1 w3 w2",
    ),
    "glm4_moe_lite": Mixture(
        ("n_routed_experts", 64), 4, fields=[_RENORMALIZED, *fields_of(*_GROUPS, 1.8, 1, 1, 1)], others=_SIGMOIDS
    ),
}
"""By model_type."""
