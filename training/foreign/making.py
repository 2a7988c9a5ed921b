"""Making a case, with the values of every numbered line from the oracle, and writing its files.

For that, named variants in the words of the catalogue, and parameters by the paper's names.
"""

import dataclasses
import functools
import json
import pathlib
import re
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

import algorithms
from algorithms.lines import MTP, Experts
from algorithms.model.variants import VARIANTS
from training import oracle
from training.crosscheck.algorithms import PSEUDOCODE
from training.crosscheck.changes import ARCHITECTURES, SHARING, changed_lines
from training.crosscheck.comparison import run_paper
from training.crosscheck.models import drawn, family_parameters, few
from training.extras import PROJECT, release
from training.oracle import family
from training.oracle.lines import IN_PLACE_OF_HEADS
from training.oracle.parameters import flatten
from training.runs.named_arrays import save_tensors

from .cases import EPSILON, FORMAT, Case, tolerances
from .reference import Reference, gradient

__all__ = [
    "ALGORITHMS", "EDGES", "choices_of", "make_case", "named_choices", "oracle_lines", "paper_name", "paper_names", "write_case"
]  # fmt: skip

SIZES = {"N_V": 19, "l_max": 16, "l_x": 7, "l_z": 5, "H": 3, "d_e": 18, "d_mlp": 72, "d_x": 6, "d_z": 8, "d_out": 10}
"""By the paper's names; no axis has the number of tokens, and √d_attn is no whole number, which a factor may be."""

CALLERS = {11: 8, 12: 9, 13: 10, 14: 10, 15: 8}
"""Training and inference → their transformer, whose case holds loss, step and sampled tokens, too."""

ALGORITHMS = (4, 5, 6, 7, 8, 9, 10, *CALLERS)
EDGES = {
    **dict.fromkeys(("padding", "several sequences"), (10, 9, 8)), **dict.fromkeys(("packed documents", "far positions"), (10, 9)),
    "a column that sees nothing": (5, 4), **dict.fromkeys(("window", "tied", "grouped heads"), (10, 9, 8)),
    "second head": (10,),
}  # fmt: skip
"""Name of an edge case → its algorithms; the first is the default. A case has at most one edge."""

WITH = {
    "window": lambda variant: variant.but(attention=tuple(_windowed(a) for a in variant.attentions)),
    "tied": lambda variant: variant.but(unembedding=variant.unembedding.but(tied=True)),
    "second head": lambda variant: variant.but(mtp=MTP()),
}
"""Edge cases that change a line of the variant, each with its change."""

FAR = 10_000  # the first position of the edge case of far positions

KINDS = {8: "ED", 9: "E", 10: "D"}
PADDING = 2  # number of padding tokens, if there is padding

VALUE = {8: ("z", "x"), 9: ("x",), 10: ("x",), 4: ("X", "Z"), 5: ("X", "Z"), 6: ("e",), 7: ("e",)}
AGREE = 1e-12

NUMBERS = {"scale": "scale", "score_cap": "cap", "clip": "clip", "delta_min": "delta_min"}
OF_EXPERTS = ("k", "scores", "renormalized", "factor", "weighted", "groups", "chosen_groups", "best")
WITHOUT_GAMMA = ("norm_gamma@l*/5", "norm_gamma@l*/7", "norm_gamma@10")
"""The norms of Algorithm 10, where they have no γ."""
OF_MTP = ("norm_gamma@mtp/e", "norm_gamma@mtp/x")  # two more of a head for the token after the next
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


def make_case(
    algorithm: int | None = None,
    variant: str = "PAPER",
    seed: int = 0,
    *,
    edge: str = "",
    record: Any = None,
    **sizes: int,
) -> Case:
    """A random case of an algorithm (None: 10, or the edge case's), or of the one that a variant is of; sizes by the paper's names.

    `edge`: one of `EDGES`, but for padding and several sequences of the paper's model; `record`: the variant with other numbers than the published ones (None:
    with windows that a few tokens show).

    Raises:
        ValueError: for an algorithm that has no case, or an unknown variant or edge case, or one of another algorithm.
    """
    if edge and edge not in EDGES:
        raise ValueError(f"edge: expected one of {', '.join(EDGES)}, got {edge!r}")
    algorithm = algorithm or (ARCHITECTURES.get(variant, 10) if variant != "PAPER" else EDGES.get(edge, (10,))[0])
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm: expected one of {', '.join(map(str, ALGORITHMS))}, got {algorithm}")
    if variant not in VARIANTS:
        raise ValueError(f"variant: expected one of {', '.join(VARIANTS)}, got {variant!r}")
    algorithm = CALLERS.get(algorithm, algorithm)
    known = {*SIZES, "H_kv", "L", "L_dec", "L_enc", "d_attn", "d_f", "d_in", "d_mid"}
    if not known.issuperset(sizes):
        raise ValueError(f"sizes: expected some of {', '.join(sorted(known))}, got {', '.join(sorted(sizes))}")
    if algorithm < 8 and variant != "PAPER":
        got = f"Algorithm {algorithm}, got {variant!r}"
        raise ValueError(f"variant: expected PAPER for {got}; give algorithm=8, 9 or 10")
    shows = sorted(EDGES.get(edge, (algorithm,)))
    if algorithm not in shows:
        raise ValueError(f"edge: expected algorithm {', '.join(map(str, shows))} with {edge!r}, got {algorithm}")
    rng = np.random.default_rng([seed, algorithm])
    s = SIZES | sizes
    if algorithm >= 8:
        record = WITH.get(edge, lambda few: few)(few(VARIANTS[variant])) if record is None else record
        return _with_edge(_of_model(algorithm, variant, record, rng, sizes, edge), edge, rng)
    s = {"d_attn": s["d_e"] // s["H"], "d_mid": s["d_e"] // s["H"]} | s | ({"H": 1} if algorithm == 4 else {})
    if algorithm in (4, 5):
        H, d, m = s["H"], s["d_attn"], s["d_mid"] if algorithm == 5 else s["d_out"]
        shapes = {"W_q": (H, d, s["d_x"]), "b_q": (H, d), "W_k": (H, d, s["d_z"]), "b_k": (H, d), "W_v": (H, m, s["d_z"]), "b_v": (H, m)}  # fmt: skip
        shapes |= {"W_o": (s["d_out"], H * m), "b_o": (s["d_out"],)} if algorithm == 5 else {}
        mask = rng.random((s["l_z"], s["l_x"])) < 0.6
        mask[rng.integers(0, s["l_z"], s["l_x"]), np.arange(s["l_x"])] = True
        mask[:, s["l_x"] // 2] = False  # a column that sees nothing
        X, Z = (rng.normal(size=(s[f"d_{n}"], s[f"l_{n}"])).astype(np.float32) for n in "xz")
        inputs = {"X": X, "Z": Z, "Mask": mask}
    else:
        shapes = {"gamma": (s["d_e"],), "beta": (s["d_e"],)} if algorithm == 6 else {"W_u": (s["N_V"], s["d_e"])}
        inputs = {"e": (0.1 * rng.normal(size=(s["d_e"], s["l_x"])) + 0.05).astype(np.float32)}
    return Case(algorithm, s, {n: drawn(rng, n, shape).astype(np.float32) for n, shape in shapes.items()}, inputs)


def _of_model(algorithm: int, name: str, variant: Any, rng: Any, sizes: dict[str, int], edge: str) -> Case:
    algorithm = ARCHITECTURES.get(name, 10) if name != "PAPER" else algorithm
    s = dict(SIZES)
    is_rotary = any("Rotary" in type(a.positions).__name__ for a in variant.attentions)
    # small, since there are six experts, whose rows PyTorch wants in multiples of four
    s |= {"d_mlp": 12, "d_e": 24} if any(type(line) is Experts for line in variant.mlps) else {}
    is_grouped = name in SHARING or edge == "grouped heads"
    is_in_part = any(getattr(a.positions, "share", 1) < 1 for a in variant.attentions)
    d_e = 32 if is_grouped and is_in_part else 24
    s |= {"d_e": d_e, "d_mlp": min(s["d_mlp"], 40)} if is_rotary or is_grouped else {}
    s |= {"H": 4, "H_kv": 2} if is_grouped else {}
    L = max(2, len(variant.attentions), variant.shared_layers)
    s |= {"L": L, "d_f": s["d_e"]} if algorithm != 8 else {"L_enc": L, "L_dec": L}
    s |= sizes
    s = {"H_kv": s["H"], "d_attn": s["d_e"] // s["H"], "d_mid": s["d_e"] // s["H"]} | s
    s |= {"d_in": 10, "d_f": 10} if variant.embedding.factored else {}
    shapes, _ = _numbered(algorithms, algorithm, variant, s)
    offset = getattr(variant.norm, "offset", 0.0)
    theta = {
        n: drawn(rng, n, a.shape, 0.1 if algorithm == 10 else 0.7, offset).astype(np.float32) for n, a in shapes.items()
    }
    known = np.arange(2, s["N_V"] - 3)
    inputs: dict[str, Any] = {}
    for n in "xz":
        l = s[f"l_{n}"]
        inputs[n] = (rng.permutation(known)[:l] if l <= len(known) else rng.choice(known, l)).tolist()
    if algorithm != 8:
        del inputs["z"]
    if algorithm == 9:
        masked = sorted(rng.permutation(s["l_x"] - PADDING * (edge == "padding"))[:2].tolist())
        inputs |= {"labels": list(inputs["x"]), "masked": masked}
        inputs["x"] = [s["N_V"] - 3 if t in masked else v for t, v in enumerate(inputs["x"])]
    return Case(algorithm, s, theta, inputs, choices_of(variant, algorithm, L), name, record=variant)


def _with_edge(case: Case, edge: str, rng: Any) -> Case:
    """The case with the padding or the other sequences of an edge case, and sampled tokens."""
    inputs = dict(case.inputs)
    if edge == "padding":
        padded = "z" if case.algorithm == 8 else "x"
        inputs["length" if padded == "x" else "z_length"] = len(inputs[padded]) - PADDING
    if edge == "several sequences":
        inputs["sequences"] = {n: [inputs[n], rng.permutation(inputs[n]).tolist()] for n in "zx" if n in inputs}
    l = len(inputs["x"])
    if edge == "packed documents":
        inputs |= {"documents": [0] * 3 + [1] * (l - 3), "positions": [*range(3), *range(l - 3)]}
    if edge == "far positions":
        if "W_p" in case.theta:
            got = f"with {edge!r}, got {case.variant}"
            raise ValueError(f"edge: expected a variant without learned positions {got}; give one such as LLAMA")
        inputs["positions"] = [FAR + t for t in range(l)]
    case = dataclasses.replace(case, inputs=inputs)
    return dataclasses.replace(case, sampling={} if "positions" in inputs else _sampled(case, rng))


def _windowed(line: Any) -> Any:
    return dataclasses.replace(line, window=3) if hasattr(line, "window") else line


def config_of(case: Case) -> Any:
    """The sizes and lines of a case of Algorithms 8 to 10 as the library has them."""
    return _config(algorithms, case.algorithm, case.record, case.sizes)


def _config(package: Any, algorithm: int, variant: Any, s: dict[str, int]) -> Any:
    config = getattr(package, f"{KINDS[algorithm]}TransformerConfig")
    names = {field.name for field in dataclasses.fields(config)}
    return config(**{name: size for name, size in s.items() if name in names}, variant=variant)


def _numbered(package: Any, algorithm: int, variant: Any, s: dict[str, int]) -> tuple[dict[str, np.ndarray], Any]:
    """The library's parameters of a model, all their numbers counted: by the paper's names, and as they are."""
    init = getattr(package, f"init_{KINDS[algorithm].lower()}_transformer")
    given = _config(package, algorithm, variant, s)
    leaves, tree = jax.tree.flatten(jax.eval_shape(lambda: init(jax.random.key(0), given)))
    ends = np.cumsum([leaf.size for leaf in leaves])
    counted = [end + np.arange(-leaf.size, 0).reshape(leaf.shape) for leaf, end in zip(leaves, ends, strict=True)]
    theta = jax.tree.unflatten(tree, counted)
    names = {name: W.astype(int) for name, W in paper_names(family_parameters(theta)).items()}
    return dict(sorted(names.items(), key=lambda item: item[1].min())), theta


def of_library(case: Case, package: Any = algorithms, record: Any = None) -> Any:
    """The parameters of a case of Algorithms 8 to 10 as the library has them, in float32.

    `package`, `record`: a mutated copy of the library, and its variant.
    """
    names, theta = _numbered(package, case.algorithm, record or case.record, case.sizes)
    flat = np.zeros(sum(n.size for n in names.values()), np.float32)
    for name, numbers in names.items():
        flat[numbers] = case.theta[name]
    return jax.tree.map(lambda numbers: flat[numbers], theta)


def _sampled(case: Case, rng: Any) -> dict[str, Any]:
    """Tokens sampled by Algorithm 14, or 15 of the paper's model: the first v with q[0] + … + q[v] above the draw."""
    if case.algorithm == 9 or (case.algorithm == 8 and case.variant != "PAPER"):
        return {}
    tau, draws = 0.7, rng.uniform(size=case.sizes["l_max"]).tolist()

    def sample(q: Any, i: int) -> int:
        return int(np.searchsorted(np.cumsum(q), draws[i], side="right"))

    if case.algorithm == 8:
        theta, z = oracle.unstack(of_library(case)), case.inputs["z"][: case.inputs.get("z_length")]
        y = oracle.ed_inference(z, theta, tau, sample, case.sizes["l_max"])
        return {"z": z, "tau": tau, "draws": draws, "y": y}
    x = case.inputs["x"][: case.inputs.get("length")]
    transformer = functools.partial(family.d_transformer, variant=case.record)
    l_gen = case.sizes["l_max"] - len(x)
    y = oracle.d_inference(x, _of_oracle(case), l_gen, tau, sample, transformer)
    return {"x": x, "tau": tau, "draws": draws[:l_gen], "y": y}


def _of_oracle(case: Case) -> Any:
    """The parameters as the oracle has them."""
    if case.algorithm >= 8:
        return family_parameters(of_library(case))
    W = dict(case.theta)
    if case.algorithm > 5:
        return oracle.unstack(SimpleNamespace(**W))
    out = {name: W.pop(name) for name in ("W_o", "b_o") if name in W}
    theta = oracle.unstack(SimpleNamespace(heads=SimpleNamespace(**W), **out))
    return theta.heads[0] if case.algorithm == 4 else theta


def _paper(case: Case) -> Any:
    """The oracle's run of a case."""
    n, theta = case.algorithm, _of_oracle(case)
    given = [np.asarray(case.inputs[name]) for name in VALUE[n]]
    if n in (4, 5):
        return lambda _: {4: oracle.attention, 5: oracle.mh_attention}[n](*given, theta, case.inputs["Mask"])
    if n in (6, 7):
        one = (lambda e: oracle.layer_norm(e, theta.gamma, theta.beta)) if n == 6 else (lambda e: oracle.unembedding(e, theta.W_u))  # fmt: skip
        return lambda _: [one(e) for e in np.asarray(given[0], np.float64).T]
    run = family.TRANSFORMERS[n]
    names = "length", "z_length", "documents", "positions"
    where = {name: case.inputs[name] for name in names if name in case.inputs}
    if case.record.mtp:  # whose own lines come behind those of the model
        return lambda _: (family.mtp_losses(given[0].tolist(), theta, case.record), run(*given, theta, case.record))
    return lambda _: run(*given, theta, case.record, **where)


def oracle_lines(case: Case) -> dict[str, np.ndarray]:
    """The value of every numbered line from the oracle, by the reference's ids.

    Raises:
        ArithmeticError: if the reference has another value anywhere.
    """
    record = run_paper(_paper(case))
    visits: dict[tuple[int, str], list[np.ndarray]] = {}
    for (n, number, _), values in record.visits.items():
        visits[n, number] = [np.asarray(visit.value) for visit in values]
    if case.algorithm in (6, 7):  # token by token
        visits = {
            key: [np.stack([*values], axis=-1).reshape(*values[0].shape[:-1], -1)] for key, values in visits.items()
        }
    found = {}
    for visit, seen in Reference(case).go().lines.items():
        own, key = seen.value[0], (seen.key.algorithm, "1" if case.algorithm == 7 else seen.key.line)
        if seen.key.what or key not in visits or visit in ("mtp:10.2", "mtp:10.return"):
            continue
        heads = len(own) if seen.parts else 1
        sharing = case.sizes["H"] // heads if seen.parts else 1
        of_line, visits[key] = visits[key][: heads * sharing], visits[key][heads * sharing :]
        value = np.stack(of_line[::sharing]) if seen.parts else of_line[0].reshape(own.shape)
        with np.errstate(invalid="ignore"):
            apart = np.nan_to_num(np.where(value == own, 0.0, np.abs(value - own)), nan=np.inf).max()
        if apart > AGREE * max(1.0, np.abs(value[np.isfinite(value)]).max(initial=0.0)):
            raise ArithmeticError(
                f"{visit}: expected the reference to have the oracle's value, got a difference of {apart:.1e}"
            )
        found[visit] = value
    return found


def write_case(case: Case, directory: str | pathlib.Path) -> None:
    """Write a case as files: see `cases`."""
    directory = pathlib.Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    run, lines = Reference(case).go(), oracle_lines(case)
    values = {visit: lines.get(visit, seen.value[0]) for visit, seen in run.lines.items()}
    state = {
        "format": FORMAT,
        "written_by": f"{PROJECT} {release()}",
        **{f.name: getattr(case, f.name) for f in dataclasses.fields(case) if f.name not in ("theta", "record")},
    }
    state["inputs"] = {n: np.asarray(v).tolist() for n, v in case.inputs.items()}
    if case.algorithm >= 8:
        state["loss"] = float(np.real(run.loss("sum")[0]))
        g = gradient(case, "sum")
        _save(directory / "gradients.safetensors", g)
        _save(directory / "updated.safetensors", {n: W - case.eta * g[n] for n, W in case.theta.items()})
    _save(directory / "parameters.safetensors", case.theta)
    _save(directory / "lines.safetensors", values)
    allowed = {dtype: tolerances(case, dtype) for dtype in EPSILON}
    changed = changed_lines(case.record, case.algorithm, 1) if case.algorithm >= 8 else {}
    state["lines"] = [_about(seen, changed, visit in lines, allowed) for visit, seen in run.lines.items()]
    (directory / "case.json").write_text(json.dumps(state, indent=1, ensure_ascii=False) + "\n", "utf-8")


def _save(path: pathlib.Path, arrays: dict[str, Any]) -> None:
    save_tensors(path, {name: np.ascontiguousarray(a) for name, a in arrays.items()})


def _about(seen: Any, changed: Any, is_numbered: bool, allowed: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The manifest's entry of a value."""
    key = seen.key
    change = changed.get((key.algorithm, key.line))
    number = "1" if key.algorithm == 7 else key.line
    line = PSEUDOCODE[key.algorithm].line(number) if change is None else change.line
    return {
        "key": key.id, "algorithm": key.algorithm, "line": number, "value": key.what or line.variable,
        "from": "oracle" if is_numbered else "reference", "formula": line.text, "latex": line.latex,
        "axes": [*(["H"] if seen.parts else []), *line.shape.split()] if not key.what else None,
        "shape": list(seen.value.shape[1:]), "tolerance": {dtype: of[key.id] for dtype, of in allowed.items()},
    }  # fmt: skip


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
    norm = of("normalize_heads")  # with a γ, θ says it
    found |= {"qk_norm": "rms"} if norm is not None and not norm.gamma else {}
    found |= {"qk_norm": "late"} if of("positions_first") else {}
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
