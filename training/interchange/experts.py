"""Mixtures of experts in files: of Mixtral, Qwen, OLMoE, MiniMax-M2, Llama 4, gpt-oss, DeepSeek, Granite, Kimi, ….

Also the first layers of some of these, which have an MLP instead.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from algorithms import VARIANTS
from algorithms.lines import MLP, Experts
from training.interchange.description import Field, Fields, fields_of, theirs

ALPHA = 1.702
"""The factor in the sigmoid of gpt-oss's nonlinearity, the only one that our ``gelu_sigmoid`` has."""
OURS, PARTS = "*_gate *_mlp1 *_mlp2", "gate_proj up_proj down_proj"
"""The matrices of a gated MLP, and their usual names."""
DENSE, SPARSE = "dense", "sparse"


class Mixture(NamedTuple):
    """A kind's description and storage of its experts, as a `Field`."""

    line: Any  # the mixture that no field decides, which has the fields' defaults
    n: str = "num_experts"  # the field with the number of experts
    width: str = "moe_intermediate_size"  # the field with the hidden units of an expert
    d_mlp: int | None = None  # its default
    fields: Sequence[Field] = ()  # further fields, by the attributes of `Experts`
    module: str = "mlp"  # in a layer
    router: str = "gate"  # in that module
    choice: str = "gate.e_score_correction_bias"  # in that module: what is added to the scores of the choice
    shared: str = "shared_experts"  # in that module: what every token takes
    shared_width: str = ""  # the field with the hidden units of what every token takes, if it is not their number
    parts: str = PARTS  # of an expert: gate, first and second matrix
    chosen: str = "num_experts_per_tok"  # the field with the number of experts that a token takes
    # the names of two tensors that have all experts: of gate and first matrix, one below the other, and of the second
    stacked: str = ""
    transposed: bool = False  # whether these have our rows as columns
    fused: bool = False  # whether one tensor has all experts, as in gpt-oss, which also clips and has biases

    def read(self, fields: Fields, found: dict[str, Any]) -> None:
        """Add the mixture, and the hidden units of an expert, to what was found."""
        found["d_mlp"] = d_mlp = fields.integer(self.width, self.d_mlp)
        for name, value in (("mlp_only_layers", []), ("decoder_sparse_step", 1)):
            fields.require(name, value, "layers without experts")
        mlp, own = plain_mlp(fields), self.line
        if self.fused:
            fields.require("swiglu_alpha", ALPHA, "another nonlinearity")
            mlp = mlp.but(activation="gelu_sigmoid", biases=True)
        line = {"activation": mlp.activation, "biases": mlp.biases, "d_mlp": None}
        for field in self.fields:
            field._replace(default=field.write(own)).read(fields, line)
        if self.shared_width:
            rows = fields.integer(self.shared_width, own.shared * (self.d_mlp or 0), least=0)
            line |= {"shared": 1, "d_shared": rows} if rows % d_mlp else {"shared": rows // d_mlp}
        balance = fields.number("router_aux_loss_coef", 0.001) if fields.flag("output_router_logits", False) else 0.0
        found["mlp"] = own.but(
            **line,
            n=fields.integer(self.n if fields.has(self.n) else "num_local_experts", own.n, limit=1 << 16),
            k=fields.integer(self.chosen if fields.has(self.chosen) else "num_experts_per_tok", own.k),
            balance=balance,
        )

    def fill(self, state: dict[str, Any], config: Any, lines: Mapping[str, Any]) -> None:
        """Add the fields to a config.json; another line than experts differs when they are read back."""
        mlps, d_mlp = config.variant.mlps_in_turn, config.d_mlp
        line: Any = next((mlp for mlp in mlps if isinstance(mlp, Experts)), mlps[0])
        state["hidden_act"] = "silu" if self.fused else theirs(getattr(line, "activation", None) or "gelu")
        if self.shared_width:
            state[self.shared_width] = getattr(line, "d_shared", None) or d_mlp * getattr(line, "shared", 0)
        if not isinstance(line, Experts):
            state[self.n] = 1
            return
        state |= {self.n: line.n, self.chosen: line.k, self.width: d_mlp}
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
        for name, shared, leaf in zip(self.parts.split(), PARTS.split(), OURS.split(), strict=True):
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


def _of(record: str, **changes: Any) -> Experts:
    """Return the mixture of a record, changed."""
    return next(mlp for mlp in VARIANTS[record].mlps if isinstance(mlp, Experts)).but(**changes)


QWEN = "shared_expert_intermediate_size"
_CHOSEN = fields_of("renormalized", "norm_topk_prob")
_GROUPS = fields_of("factor groups chosen_groups", "routed_scaling_factor n_group topk_group")
_SHARED = fields_of("shared", "n_shared_experts")
_OF_KIMI = "routed_scaling_factor num_expert_group|n_group topk_group num_shared_experts|n_shared_experts"
_qwen = functools.partial(Mixture, shared="shared_expert")
_deepseek = functools.partial(Mixture, n="n_routed_experts", fields=[*_CHOSEN, *_GROUPS, *_SHARED])
GRANITE = Mixture(
    Experts(n=8, gated=True, shared=1),
    "num_local_experts",
    "intermediate_size",
    d_mlp=1024,
    module="block_sparse_moe",
    router="router.layer",
    shared_width=SHARED,
    stacked="input_linear.weight output_linear.weight",
)
NEMOTRON = Mixture(
    Experts(n=8, activation="relu_squared", scores="sigmoid", choice_bias=True, shared=1),
    "n_routed_experts",
    d_mlp=7688,
    fields=[Field("mlp_hidden_act", "activation"), *_CHOSEN, *_GROUPS],
    shared_width="moe_shared_expert_intermediate_size",
)
MIXTURES = {
    "mixtral": GRANITE._replace(line=_of("MIXTRAL"), router="gate", parts="w1 w3 w2", stacked="", shared_width=""),
    "qwen3_moe": Mixture(_of("QWEN3_MOE", renormalized=False), fields=_CHOSEN),
    "qwen3_next": _qwen(_of("QWEN3_NEXT"), d_mlp=512, shared_width=QWEN, fields=_CHOSEN),
    "qwen2_moe": _qwen(_of("QWEN2_MOE"), d_mlp=1408, shared_width=QWEN, fields=_CHOSEN),
    "qwen3_5_moe_text": _qwen(_of("QWEN3_5_MOE"), d_mlp=512, shared_width=QWEN),
    "glm4_moe": _deepseek(_of("GLM4_MOE"), d_mlp=1408),
    "ernie4_5_moe": Mixture(
        _of("ERNIE4_5_MOE"),
        "moe_num_experts",
        d_mlp=1536,
        fields=fields_of("shared", "moe_num_shared_experts"),
        choice="gate.moe_statics.e_score_correction_bias|moe_statics.e_score_correction_bias",
        chosen="moe_k",
    ),
    "olmoe": Mixture(_of("OLMOE"), width="intermediate_size", fields=_CHOSEN),
    "minimax_m2": Mixture(
        _of("MINIMAX_M2"),
        "num_local_experts",
        "intermediate_size",
        module="block_sparse_moe",
        choice="e_score_correction_bias",
        parts="w1 w3 w2",
    ),
    "llama4_text": Mixture(
        _of("LLAMA4", n=16),
        "num_local_experts",
        "intermediate_size",
        module="feed_forward",
        router="router",
        stacked="experts.gate_up_proj experts.down_proj",
        transposed=True,
    ),
    "gpt_oss": Mixture(
        _of("GPT_OSS", n=128),
        "num_local_experts",
        "intermediate_size",
        fields=fields_of("clip", "swiglu_limit"),
        router="router",
        fused=True,
    ),
    "granitemoe": GRANITE._replace(line=Experts(n=8, gated=True), shared_width=""),
    "granitemoeshared": GRANITE._replace(line=Experts(n=8, gated=True)),
    "kimi_linear": Mixture(
        _of("KIMI_LINEAR"),
        fields=fields_of(
            "renormalized factor groups chosen_groups shared", f"moe_renormalize|norm_topk_prob {_OF_KIMI}"
        ),
        chosen="num_experts_per_token",
        module="block_sparse_moe",
        parts="w1 w3 w2",
    ),
    "deepseek_v2": _deepseek(Experts(n=64, gated=True, renormalized=False, shared=2), fields=[*_GROUPS, *_SHARED]),
    **dict.fromkeys(("deepseek_v3", "deepseek_v32"), _deepseek(_of("DEEPSEEK"))),
    "glm_moe_dsa": _deepseek(_of("GLM5")),
    "lfm2_moe": Mixture(
        _of("LFM2_MOE"),
        d_mlp=1792,
        fields=[*_CHOSEN, *fields_of("choice_bias factor", "use_expert_bias routed_scaling_factor")],
        module="feed_forward",
        choice="expert_bias",
        parts="w1 w3 w2",
    ),
    "glm4_moe_lite": _deepseek(_of("GLM4_MOE_LITE")),
}
"""By model_type."""
