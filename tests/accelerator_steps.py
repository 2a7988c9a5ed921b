"""The cost of training and decoding steps of GPT-2 124M and Llama 1.1 G, compiled for TPUs and H100s.

python -m training.benchmarks.accelerators.steps [--details]
"""

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from algorithms import GPT2, LLAMA, DTransformerConfig, Variant, for_platform, init_d_transformer
from training.benchmarks import reference
from training.benchmarks.accelerators import compilers, llama, programs
from training.benchmarks.timing import table
from training.benchmarks.training_step import loss
from training.generation.decoding import step
from training.generation.layout import unstacked
from training.generation.states import empty_state


class Model(NamedTuple):
    """A model and a plain implementation to compare with."""

    name: str  # in the tables
    variant: Variant  # of the library
    sizes: Mapping[str, Any]  # of the configuration
    peer: Any  # module with the parameters and the loss of the plain implementation


GPT2_124M = Model("GPT-2 124M", GPT2, reference.GPT2_124M, reference)
LLAMA_1G = Model("Llama 1.1 G", LLAMA, llama.LLAMA_1G, llama)


class Case(NamedTuple):
    """A step on one device."""

    device: str  # "h100", or a TPU topology (its first chip is used)
    B: int  # sequences
    remat: bool = False  # whether a training step recomputes the layers' activations
    model: Model = GPT2_124M
    unroll: bool = False  # whether each layer is compiled separately
    packed: bool = False  # whether the library's rows are of several documents, as by train.py

    @property
    def is_gpu(self) -> bool:
        """Whether the device is an NVIDIA GPU."""
        return self.device == "h100"

    def mesh(self) -> Any:
        """Return a mesh of the device."""
        return compilers.h100(1) if self.is_gpu else compilers.tpu(self.device, 1)


TRAINING = (
    Case("v5e:2x4", 4),
    Case("v5e:2x4", 8),
    Case("v6e:2x4", 8),
    Case("v5p:2x2x1", 64, remat=True),
    Case("h100", 8),
    Case("h100", 32),
    Case("v5e:2x4", 8, packed=True),
    Case("h100", 8, packed=True),
    Case("h100", 32, packed=True),
    Case("v5e:2x4", 8, unroll=True),
    Case("v5e:2x4", 16, unroll=True),
    Case("v5p:2x2x1", 64, unroll=True),
    Case("h100", 8, unroll=True),
    Case("h100", 32, unroll=True),
    Case("v5p:2x2x1", 8, remat=True, model=LLAMA_1G),
    Case("h100", 8, remat=True, model=LLAMA_1G),
)
DECODING = (
    Case("v5e:2x4", 16),
    Case("h100", 16),
    Case("v5e:2x4", 16, model=LLAMA_1G),
    Case("h100", 16, model=LLAMA_1G),
)


def training_step(case: Case, which: str, sizes: Mapping[str, Any] | None = None) -> programs.Report:
    """Return the report of a training step with AdamW in bfloat16, of the "library" or the "reference"."""
    jax.clear_caches()  # a cached trace keeps the source lines of its first caller
    optimizer, model = optax.adamw(1e-3), case.model
    loop = {"remat": case.remat, "unroll": case.unroll}
    sizes = sizes or model.sizes
    if which == "library":
        config = DTransformerConfig(**sizes, variant=model.variant)
        theta = jax.eval_shape(lambda key: init_d_transformer(key, config), jax.random.key(0))
        of_theta: Callable[..., Any] = functools.partial(loss, packed=case.packed, **loop)
    else:
        theta = model.peer.parameters(dict(sizes))
        kernel = "cudnn" if case.is_gpu else "splash"
        of_theta = functools.partial(model.peer.loss, H=sizes["H"], kernel=kernel, **loop)
    x = jax.ShapeDtypeStruct((case.B, sizes["l_max"]), jnp.int32)
    arguments = theta, jax.eval_shape(optimizer.init, theta), x
    update = reference.training_step(of_theta, optimizer)
    return programs.of(compilers.compile_for(update, arguments, case.mesh(), donate_argnums=(0, 1)))


def decoding_step(case: Case, C: int, sizes: Mapping[str, Any] | None = None) -> tuple[programs.Report, int]:
    """Return the report of a token for B sequences, in bfloat16, of C slots, and the bytes of weights and cache."""
    jax.clear_caches()
    variant = case.model.variant
    config = DTransformerConfig(**(sizes or case.model.sizes), variant=variant)

    def begin(key):
        theta = jax.tree.map(lambda a: a.astype(jnp.bfloat16), init_d_transformer(key, config))
        weights = unstacked(theta)
        return weights, empty_state(weights, B=case.B, C=C, bos=0)

    with for_platform("cuda" if case.is_gpu else "tpu"):  # a cache is laid out for its platform
        weights, state = jax.eval_shape(begin, jax.random.key(0))

    def generate(weights, state):
        P, caches = step(weights, None, state)
        tokens = jax.lax.dynamic_update_slice_in_dim(state.tokens, P.argmax(0)[:, None], state.slot + 1, axis=1)
        return state._replace(caches=caches, tokens=tokens, slot=state.slot + 1)

    report = programs.of(compilers.compile_for(generate, (weights, state), case.mesh(), donate_argnums=(1,)))
    read = weights if weights.W_u is None else weights._replace(W_e=None)  # an untied W_e gives only B columns
    return report, sum(a.size * a.dtype.itemsize for a in jax.tree.leaves((read, state.caches)))


def columns(report: programs.Report) -> list[float]:
    """Return Mcycles (TPU), HBM GB, temporary GB, kernels, and runs of the attention kernel."""
    runs, moved, cycles = programs.total(report.sources)
    kernels = {name: n for name, (n, _, _) in report.custom_calls.items() if "splash" in name or "fmha" in name}
    return [cycles / 1e6, moved / 1e9, report.memory["temp"] / 1e9, runs, sum(kernels.values())]


HEADER = ["Mcycles", "HBM GB", "temporary GB", "kernels", "runs of the attention kernel"]


def tables(details: bool) -> Iterator[str]:
    """Yield the tables, and a sentence for each compiler that is not installed."""
    rows, missing = [], {}
    for n, case in enumerate(TRAINING, 1):
        print(f"compiling training step {n} of {len(TRAINING)}: {case}", file=sys.stderr, flush=True)
        try:
            case.mesh()
        except ModuleNotFoundError as error:
            missing[case.is_gpu] = f"Left out: {error}."
            continue
        reports = {which: training_step(case, which) for which in ("library", "reference")}
        pairs = zip(*(columns(report) for report in reports.values()), strict=True)
        flags = {"remat": case.remat, "unrolled": case.unroll, "packed": case.packed}
        loop = "".join(f", {name}" for name, is_set in flags.items() if is_set)
        what = f"{case.model.name}, {case.device}, batch {case.B}{loop}"
        rows.append([what, *(f"{a:.4g} / {b:.4g} = {a / b:.2f}" if b else "-" for a, b in pairs)])
        if details:
            yield from (f"{what}, {which}:\n{_details(report)}" for which, report in reports.items())
    yield "Training step, AdamW, bfloat16, of l = l_max tokens: library / reference = ratio.\n"
    yield table(["", *HEADER], rows)
    rows = []
    for case in DECODING:
        if case.is_gpu not in missing:
            report, read = decoding_step(case, 1024)
            values = columns(report)[:4]
            what = f"{case.model.name}, {case.device}, batch {case.B}"
            rows.append([what, *(f"{v:.4g}" for v in values), f"{values[1] / read * 1e9:.2f}"])
            if details:
                yield f"decoding, {case.device}:\n{_details(report)}"
    yield "\nDecoding step, bfloat16, 1024 slots of cache.\n"
    yield table(["", *HEADER[:4], "HBM / (weights and cache)"], rows)
    yield from missing.values()


def _details(report: programs.Report, n: int = 16) -> str:
    lines = []
    for title in ("custom_calls", "copies", "sources"):
        lines.append(f"  {title:66}{'runs':>8}{'GB':>10}{'Mcycles':>10}")
        costs = sorted(getattr(report, title).items(), key=lambda item: item[1][::-1], reverse=True)
        lines += [f"    {name[:64]:64}{runs:8.0f}{b / 1e9:10.3f}{c / 1e6:10.2f}" for name, (runs, b, c) in costs[:n]]
    return "\n".join(lines)


def main() -> int:
    """Parse the command line, compile, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--details", action="store_true", help="print cycles and bytes by source line")
    for text in tables(parser.parse_args().details):
        print(text, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
