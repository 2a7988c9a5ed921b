"""Named variants in the words of the catalogue, and parameters by the paper's names."""

import dataclasses
import json
import re
from typing import Any

import numpy as np

from algorithms.model.variants import VARIANTS
from training.crosscheck.changes import ARCHITECTURES
from training.oracle.lines import IN_PLACE_OF_HEADS
from training.oracle.parameters import flatten

__all__ = ["choices_of", "named_choices", "paper_name", "paper_names"]

NUMBERS = {"scale": "scale", "score_cap": "cap", "clip": "clip", "delta_min": "delta_min"}
OF_EXPERTS = ("k", "scores", "renormalized", "factor", "weighted", "groups", "chosen_groups", "best")
WITHOUT_GAMMA = ("norm_gamma@l*/5", "norm_gamma@l*/7", "norm_gamma@10")
"""The norms of Algorithm 10, where they have no γ."""
OF_MTP = ("norm_gamma@mtp/e", "norm_gamma@mtp/x")
"""Two more of a head for the token after the next."""
PAIRS = {"halves": "halves", "neighbors": "neighbours"}
KEPT = {"self_attention": "", "attention": "", "heads": "", "groups": "", "relative": "", "mlp": "", "cross_attention": "e_d/",
        "experts": "experts/", "shared": "shared/", "index": "index/", "recurrence": "recurrence/", "context": "context/", "norm": "",
        "end": "end/", "layer_inputs": "inputs/", "norms": "norms/", "router": "router/", "inputs": "inputs/", "outputs": "outputs/",
        "mtp": "mtp/"}  # fmt: skip
NORMS = {
    "embedding_norm": "_e",
    "encoder_norm": "_enc",
    "decoder_norm": "_dec",
    "norm_f": "_f",
    "norm_q": "_cq",
    "norm_c": "_c",
    "norm_k": "_k",
    "norm_e": "_e",
    "norm_x": "_x",
}
STACKS = {"layers": "l", "encoder": "enc", "decoder": "dec", "mtp": "mtp"}


def choices_of(variant: Any, algorithm: int, L: int) -> dict[str, str]:
    """A variant's choices for L layers in place of the paper's, by scope; `algorithm`: 8, 9 or 10."""
    e, norm, u, mlps = variant.embedding, variant.norm, variant.unembedding, [m for m in variant.mlps_in_turn if m]
    found = {"activation": (mlps[0].activation if mlps else None) or ("relu" if algorithm == 8 else "gelu")}
    if e.positions is None:
        found["position_table"] = "none"
    else:
        rows = {"sinusoidal": "neighbours", "sinusoidal_halves": "halves"}.get(e.positions)
        found |= {"position_index": f"t+{e.first_position}"} if e.first_position else {}
        found |= {"position_table": f"sinusoids 10000, {rows}, 2i/d, sin before cos"} if rows else {}
    found |= {"norm_kind": "rms_norm"} if _is(norm, "RMSNorm") else {}
    found |= {"norm_epsilon": f"+{norm.epsilon:g}"} if norm.epsilon else {}
    found |= {"norm_gamma": "γ+1"} if getattr(norm, "offset", 0) else {}
    factor = {True: "√d_e", "bfloat16": "√d_e in bfloat16"}.get(e.scaled, _numbers(e.factor))
    found |= {"embedding_scale": factor} if factor != "1" else {}
    found |= {"residual": f"X + {variant.residual_factor:g} A"} if variant.residual_factor != 1 else {}
    found |= dict.fromkeys(WITHOUT_GAMMA + OF_MTP * bool(variant.mtp), "none") if not norm.gamma else {}
    found |= {"norm_gamma@embedding": "none"} if e.normalized and not norm.gamma else {}
    order = variant.orders[0] if len(variant.orders) == 1 else None
    parallel = {"side_by_side": "yes", "one_norm": "one norm"}.get(order or "")
    found |= {"parallel": parallel} if parallel else {}
    order = "norm_first" if order == "no_norm" else order
    is_other = order in {"norm_first", "norm_last"} - {"norm_first" if algorithm == 10 else "norm_last"}
    found |= {"order": order} if is_other else {}
    found |= {"mlp_factors": _numbers(*mlps[0].factors)} if mlps and mlps[0].factors != (1, 1) else {}
    found |= {"mlp_clip": f"{mlps[0].clip:g}"} if mlps and mlps[0].clip else {}
    experts = next((m for m in mlps if _is(m, "Experts")), None)
    found |= {"experts": json.dumps({name: getattr(experts, name) for name in OF_EXPERTS})} if experts else {}
    found |= {"unembed": "W_eᵀ"} if u.tied else {}
    scale = "1/√d_e" if u.tied and u.scaled else _numbers(u.factor)
    found |= {"unembed_scale": scale} if scale != "1" else {}
    found |= {"cap": f"{u.cap:g}"} if u.cap else {}
    found |= {"mtp_loss": f"{variant.mtp.weight:g} sum"} if variant.mtp else {}
    mixers = [part for a in variant.attentions for part, _ in a.parts()]
    recurrences = [a for a in mixers if type(a).__name__ in IN_PLACE_OF_HEADS]
    epsilon = next((a.norm.epsilon for a in recurrences if getattr(a, "norm", None)), None)
    found |= {} if epsilon is None else {"norm_epsilon@l*/6/o": f"+{epsilon:g}"}
    found |= {"delta_rate": "2σ"} if any(getattr(a, "beta_factor", 1) == 2 for a in recurrences) else {}
    lines = [_attention(a, algorithm) for a in variant.attentions]
    for slot in dict.fromkeys(slot for line in lines for slot in line):
        names = [line.get(slot) for line in lines]
        each = {f"{slot}@l{l + 1}/{5 if algorithm == 9 else 6}": names[l % len(names)] for l in range(L)}
        each |= {f"{slot}@mtp1/6": _attention(variant.of_mtp.attentions[0], 10).get(slot)} if variant.mtp else {}
        of_attentions = {n for n, a in zip(names, variant.attentions, strict=True) if a not in recurrences}
        found |= {slot: of_attentions.pop()} if len(of_attentions) == 1 and of_attentions != {None} else each
    if variant.mtp:  # what holds of a layer, or behind the layers, holds of the head's
        found = {re.sub(r"@(l\*|(?=10|embedding))", _of_mtp, scope): name for scope, name in found.items()} | found
    return {scope: name for scope, name in found.items() if name is not None}


def _of_mtp(match: re.Match[str]) -> str:
    return "@mtp1" if match[1] else "@mtp/"


def _numbers(*factors: float) -> str:
    return " ".join(f"{c:g}" if float(f"{c:g}") == c else repr(c) for c in factors)


def _is(record: Any, kind: str) -> bool:
    return type(record).__name__ == kind


def _attention(line: Any, algorithm: int) -> dict[str, str]:
    """The choices of a mixer; in Algorithm 8, cross-attention has no distances."""
    if _is(line, "Parallel"):
        attention, recurrence = (_attention(part, algorithm) for part, _ in line.parts())
        return {**attention, **recurrence, "mixer_sum": _numbers(*line.factors)}

    def of(name: str) -> Any:
        return getattr(line, name, None)

    at, found = of("positions"), {}
    found |= {slot: _numbers(of(name)) for slot, name in NUMBERS.items() if of(name)}
    if _is(line, "Mamba2"):
        found |= {"mamba_factors": _numbers(*line.factors)} if line.factors != (1.0,) * 5 else {}
        found |= {"state_norm": "none"} if of("norm") is None else {}
    found |= (
        {"qk_norm": "late" if of("positions_first") else "rms"} if of("positions_first") or _without_gamma(line) else {}
    )
    found |= {"value_norm": "rms"} if of("normalize_values") else {}
    found |= {"keys_of": f"{line.keys_of + 1}"} if of("keys_of") is not None else {}
    found |= {"state_gate": "sigmoid"} if _is(line, "KimiDelta") else {}
    found |= {"mask": f"{'chunk' if of('chunked') else 'window'} {of('window')}"} if of("window") is not None else {}
    grow = at if _is(at, "Temperature") else getattr(at, "temperature", None)
    found |= {"temperature": f"{grow.c:g} {grow.n} {grow.first}"} if grow else {}
    scaling: Any = getattr(at, "scaling", None)
    if _is(at, "Rotary"):
        pairs, _, way = at.pairs.partition("_")
        found["rotation"] = f"{PAIRS[pairs]} {at.base:.17g} 2i/d{', backwards' * bool(way)}"
        found |= {"rotation_share": f"{at.share:g}"} if at.share != 1 and not at.of_all else {}
        said = {"kind": type(scaling).__name__, **dataclasses.asdict(scaling)} if scaling else {}
        said = {"kind": "Proportional", "share": at.share} if at.of_all else said
        found |= {"rotation_scaling": json.dumps(said)} if said else {}
    told = {"Distances": lambda: f"T5 {at.buckets} {at.farthest}", "ALiBi": lambda: "ALiBi",
            "TransformerXL": lambda: f"Transformer-XL {at.base:g}"}.get(type(at).__name__)  # fmt: skip
    if told is not None:
        found |= dict.fromkeys(("distances@enc*/5", "distances@dec*/14") if algorithm == 8 else ("distances",), told())
    if _is(line, "Latent"):
        found["norm_epsilon@l*/6/c"] = f"+{line.norm.epsilon:g}"
        if line.indexer:
            found |= {"index_k": str(line.indexer.k), "index_pairs": PAIRS[line.indexer.pairs]}
        if getattr(scaling, "scores", 0):
            found["scale"] = f"yarn {scaling.scores:g} {scaling.factor:g}"
    return found


def _without_gamma(line: Any) -> bool:
    """Whether an attention's heads have norms without γ; with one, θ says it."""
    norm = getattr(line, "normalize_heads", None)
    return norm is not None and not norm.gamma


def named_choices(L: int) -> dict[str, tuple[int, dict[str, str]]]:
    """Name of a variant → its algorithm and its choices, of models of L layers."""
    found = {name: ARCHITECTURES.get(name, 10) for name in VARIANTS}
    return {name: (n, choices_of(VARIANTS[name], n, L)) for name, n in found.items()}


def paper_name(path: str) -> str:
    """From the path of an array in the oracle's θ to its name.

    "layers[0].attention.heads[1].W_q" → "l1/W_q"; "decoder[1].mlp.W_mlp1" → "dec2/W_mlp3".
    """
    path = path.replace("mtp.layers[0]", "mtp[0]")
    *parts, leaf = re.sub(r"\[\d+\]", "", path).split(".")
    stack, prefix, suffix = STACKS.get(path.partition("[")[0], ""), "", ""
    for part in parts[1:] if stack else parts:
        if match := re.fullmatch(r"norm(\d)", part):
            suffix = f"_{match[1]}"
        elif part == "norm_out":
            suffix = "" if "end" in parts else "_mlp_out" if "mlp" in parts else "_attn_out"
        elif part in NORMS:
            suffix = NORMS[part]
        else:
            prefix += KEPT[part]
    if "mlp" in parts:
        leaf = "s_router" if leaf == "s" else leaf.replace("_r", "_router")
        leaf = re.sub(r"mlp(\d)$", lambda m: f"mlp{int(m[1]) + 2}", leaf) if stack == "dec" else leaf
    layer = re.sub(r"\w+\[(\d+)\].*", lambda l: f"{stack}{int(l[1]) + 1}/", path) if stack else ""
    return f"{layer}{prefix}{leaf}{suffix}"


def paper_names(theta: Any) -> dict[str, np.ndarray]:
    """θ by the paper's names from the oracle's: heads are in front again."""
    found: dict[str, list[np.ndarray]] = {}
    for path, W in flatten(theta).items():
        found.setdefault(paper_name(path), []).append(W[None] if re.search(r"(heads|groups)\[", path) else W)
    return {name: np.concatenate(arrays) if len(arrays) > 1 else arrays[0] for name, arrays in found.items()}
