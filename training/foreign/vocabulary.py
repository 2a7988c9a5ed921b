"""Named variants in the words of the catalogue, and parameters by the paper's names."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from algorithms.model.variants import VARIANTS
from training.crosscheck.changes import ARCHITECTURES
from training.crosscheck.models import options_of

__all__ = ["choices_of", "named_choices", "paper_name", "paper_names"]

SINUSOIDS = {"neighbors": "neighbours, 2i/d", "halves": "halves, 2i/d"}
WITHOUT_GAMMA = ("norm_gamma@l*/5", "norm_gamma@l*/7", "norm_gamma@10")
"""The norms of Algorithm 10, where they have no γ."""
PAIRS = {"halves": "halves", "neighbors": "neighbours"}
KEPT = {"self_attention": "", "attention": "", "heads": "", "relative": "", "mlp": "", "cross_attention": "e_d/",
        "experts": "experts/", "shared": "shared/", "index": "index/", "context": "context/", "norm": "", "variant": ""}  # fmt: skip
NORMS = {
    "embedding_norm": "_e",
    "encoder_norm": "_enc",
    "decoder_norm": "_dec",
    "norm_q": "_cq",
    "norm_c": "_c",
    "norm_k": "_k",
}
STACKS = {"layers": "l", "encoder": "enc", "decoder": "dec"}


def choices_of(variant: Any, algorithm: int, L: int) -> dict[str, str]:
    """A variant's choices for L layers in place of the paper's, by scope; `algorithm`: 8, 9 or 10."""
    options = options_of(variant, L)
    found = {"activation": options["activation"] or ("relu" if algorithm == 8 else "gelu")}
    found |= _positions(options["positions"]) | {"norm_kind": options["norm"]}
    found |= {"norm_epsilon": f"+{options['epsilon']:g}"} if options["epsilon"] else {}
    found |= {"norm_gamma": "γ+1"} if options["norm_offset"] else {}
    scale = options["embedding_scale"]
    roots = {"sqrt_d_e": "√d_e", "sqrt_d_e_bfloat16": "√d_e in bfloat16"}
    found |= {"embedding_scale": roots.get(scale) or f"{scale:g}"} if scale != 1 else {}
    found |= {"residual": f"X + {options['residual_scale']:g} A"} if options["residual_scale"] != 1 else {}
    found |= dict.fromkeys(WITHOUT_GAMMA, "none") if not variant.norm.gamma else {}
    found |= {"norm_gamma@embedding": "none"} if variant.embedding.normalized and not variant.norm.gamma else {}
    parallel = {"side_by_side": "yes", "one_norm": "one norm"}.get(options["order"] or "")
    found |= {"parallel": parallel} if parallel else {}
    order = options["order"] in ("norm_first", "norm_last") and options["order"]
    found |= {"order": order} if order and order != ("norm_first" if algorithm == 10 else "norm_last") else {}
    found |= {"mlp_clip": f"{options['clip']:g}"} if options["clip"] else {}
    found |= {"experts": json.dumps(options["experts"])} if options["experts"] else {}
    found |= {"unembed": "W_eᵀ"} if variant.unembedding.tied else {}
    scale = "1/√d_e" if options["logit_scale"] == "rsqrt_d_e" else f"{options['logit_scale']:g}"
    found |= {"unembed_scale": scale} if scale != "1" else {}
    found |= {"cap": f"{options['logit_cap']:g}"} if options["logit_cap"] else {}
    recurrences = [
        line for line in options["attention"] if line.keys() & {"delta", "mamba", "lru", "short_convolution"}
    ]
    epsilon = next((line["epsilon"] for line in recurrences if "epsilon" in line), None)
    found |= {} if epsilon is None else {"norm_epsilon@l*/6/o": f"+{epsilon:g}"}
    found |= {"delta_rate": "2σ"} if any(line.get("beta_factor") == 2 for line in recurrences) else {}
    lines = [_attention(line, algorithm) for line in options["attention"]]
    for slot in dict.fromkeys(slot for line in lines for slot in line):
        names = [line.get(slot) for line in lines]
        each = {f"{slot}@l{l + 1}/{5 if algorithm == 9 else 6}": names[l % len(names)] for l in range(L)}
        of_attentions = {n for n, line in zip(names, options["attention"], strict=True) if line not in recurrences}
        found |= {slot: of_attentions.pop()} if len(of_attentions) == 1 and of_attentions != {None} else each
    return {scope: name for scope, name in found.items() if name is not None and name != "layer_norm"}


def _positions(rule: Mapping[str, Any] | None) -> dict[str, str]:
    """Line 2 of Algorithms 9 and 10."""
    if rule is None:
        return {"position_table": "none"}
    first = {"position_index": f"t+{rule['first']}"} if rule.get("first") else {}
    if rule["kind"] == "sinusoidal":
        return {"position_table": f"sinusoids {rule['base']:g}, {SINUSOIDS[rule['rows']]}, sin before cos", **first}
    return first


def _attention(line: Mapping[str, Any], algorithm: int) -> dict[str, str]:
    """The choices of an attention; in Algorithm 8, cross-attention has no distances."""
    at: Mapping[str, Any] = line.get("positions") or {"kind": None}
    found = {slot: f"{line[key]:g}" for slot, key in (("scale", "scale"), ("score_cap", "cap"), ("clip", "clip")) if line.get(key) is not None}  # fmt: skip
    found |= {"qk_norm": "rms"} if line.get("normalize_heads") else {}
    found |= {"qk_norm": "late"} if line.get("positions_first") else {}
    found |= {"delta_min": f"{line['delta_min']:g}"} if line.get("delta_min") else {}
    found |= {"state_gate": line["gate"]} if line.get("gate") else {}
    kind = "chunk" if line.get("chunked") else "window"
    found |= {"mask": f"{kind} {line['window']}"} if line.get("window") is not None else {}
    grow = at if at["kind"] == "temperature" else at.get("temperature")
    found |= {"temperature": f"{grow['c']:g} {grow['n']} {grow['first']}"} if grow else {}
    if at["kind"] == "rotary":
        pairs, _, way = at.get("pairs", "halves").partition("_")
        found["rotation"] = f"{PAIRS[pairs]} {at['base']:.17g} 2i/d{', backwards' * bool(way)}"
        found |= {"rotation_share": f"{at['share']:g}"} if at.get("share", 1) != 1 else {}
        found |= {"rotation_scaling": json.dumps(at["scaling"])} if at.get("scaling") else {}
    told = {"distances": lambda: f"T5 {at['num_buckets']} {at['max_distance']}", "alibi": lambda: "ALiBi",
            "transformer_xl": lambda: f"Transformer-XL {at['base']:g}"}.get(at["kind"])  # fmt: skip
    if told is not None:
        found |= dict.fromkeys(("distances@enc*/5", "distances@dec*/14") if algorithm == 8 else ("distances",), told())
    if line.get("latent"):
        found["norm_epsilon@l*/6/c"] = f"+{line['epsilon']:g}"
        indexer = line["indexer"] or {}
        found |= {f"index_{name}": str(value).replace("neighbors", "neighbours") for name, value in indexer.items()}
        scaling = at.get("scaling") or {}
        if line["scores"] and scaling:
            found["scale"] = f"yarn {line['scores']:g} {scaling['factor']:g}"
    return found


def named_choices(L: int) -> dict[str, tuple[int, dict[str, str]]]:
    """Name of a variant → its algorithm and its choices, of models of L layers."""
    found = {name: ARCHITECTURES.get(name, 10) for name in VARIANTS}
    return {name: (n, choices_of(VARIANTS[name], n, L)) for name, n in found.items()}


def paper_name(path: str) -> tuple[str, str]:
    """From the path of an array of θ to its name: the stack it is in ("l", "enc", "dec" or ""), and the name there.

    ".layers.attention.heads.W_q" → ("l", "W_q"); ".decoder.mlp.W_mlp1" → ("dec", "W_mlp3").
    """
    *parts, leaf = re.sub(r"\[\d+\]", "", path).strip(".").split(".")
    stack = STACKS.get(parts[0], "") if parts else ""
    prefix, suffix = "", ""
    for part in parts[1:] if stack else parts:
        if match := re.fullmatch(r"norm(\d)", part):
            suffix = f"_{match[1]}"
        elif part == "norm_out":
            suffix = "_mlp_out" if "mlp" in parts else "_attn_out"
        elif part in NORMS:
            suffix = NORMS[part]
        else:
            prefix += KEPT[part]
    if "mlp" in parts:
        leaf = leaf.replace("_r", "_router")
        leaf = re.sub(r"mlp(\d)$", lambda m: f"mlp{int(m[1]) + 2}", leaf) if stack == "dec" else leaf
    return stack, f"{prefix}{leaf}{suffix}"


def paper_names(arrays: Mapping[str, Any], places: Sequence[tuple[int, int]] = ()) -> dict[str, Any]:
    """θ by the paper's names from its arrays by path, the layers one by one; Algorithm 8's second layers are "dec".

    `places`: the stack of each layer, and its row there, if there are several stacks.
    """
    found: dict[str, Any] = {}
    for path, W in arrays.items():
        stack, name = paper_name(path)
        number = re.match(r"\.layers\[(\d+)\]", path)
        rows = [(l, row) for l, (of, row) in enumerate(places) if number and of == int(number[1])]
        layers = {f"{stack}{l + 1}/{name}": W[row] for l, row in rows or ((l, l) for l in range(len(W)))}
        found |= layers if stack else {name: W}
    return found
