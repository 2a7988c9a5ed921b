"""Checks every kernel of this machine against the oracle, measures it, and writes both as one Markdown file.

On a CPU, a self-test: the kernels that a CPU has, and small sizes.
"""

import dataclasses
import functools
import importlib
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import GPT2, DTransformerConfig
from training.benchmarks import attention, decode, kernels, reference, rival
from training.benchmarks.accelerators import programs
from training.benchmarks.timing import Timing, alternate, machine, table
from training.command_line.terminal import Bar, say
from training.commands import scaling
from training.loop.cost import matmul_peak
from training.mesh.placement import Placement
from training.settings import Settings
from training.tasks.objectives import resolved

FILE = Path("build", "hardware.md")
EVERY = 10.0  # seconds between two lines of progress
H100 = scaling.CHIPS["h100"]
CHIPS = {
    "H100 80GB HBM3": H100,
    "H200": H100._replace(bandwidth=4800e9),
    "v5 lite": scaling.CHIPS["v5e"],
    "v5e": scaling.CHIPS["v5e"],
    "v6": scaling.CHIPS["v6e"],
    "v5": scaling.CHIPS["v5p"],
}
"""Part of a device's name → its specification, the first that fits."""
PLAIN = {"gpu": "cudnn", "tpu": "splash"}
"""Platform → the kernel of attention in plain JAX, where it computes in bfloat16."""
N_DOCUMENTS = 3  # in a row


class Sizes(NamedTuple):
    """The model and sizes to measure."""

    model: dict[str, Any]  # GPT-2's sizes
    B: tuple[int, int]  # sequences of a training step: few, and as many as fit
    attention: tuple[tuple[int, int, int], ...]  # heads, tokens, rows
    generated: tuple[int, int]  # tokens of a prompt, and tokens after it
    served: tuple[int, int]  # requests of each client, and tokens of each


GPT2_124M = Sizes(reference.GPT2_124M, (8, 32), ((96, 1024, 64), (32, 4096, 128)), (32, 64), (4, 64))
SMALL = {"N_V": 320, "l_max": 128, "L": 2, "H": 2, "d_e": 32, "d_mlp": 64}
OF_PLATFORM = {"cpu": Sizes(SMALL, (2, 4), ((2, 128, 16),), (8, 8), (1, 4))}


def run(rounds: int, chosen: Sequence[str]) -> int:
    """Check and measure the chosen parts, print and write each as soon as it is there, and return the exit status."""
    platform, wrong = jax.default_backend(), []
    sizes = OF_PLATFORM.get(platform, GPT2_124M)
    all_parts: dict[str, tuple[str, Callable[[], str]]] = {
        "kernels": ("Kernels", lambda: _checked(platform, wrong)),
        "step": ("Training step", lambda: step(sizes, sizes.B[0], rounds)),
        "large-step": ("Training step of a large batch", lambda: step(sizes, sizes.B[1], rounds)),
        "attention": ("Attention", lambda: attentions(sizes, rounds)),
        "decoding": ("Decoding", lambda: decoding(sizes, rounds)),
        "training": ("Training", lambda: training(sizes, rounds)),
        "serving": ("Serving", lambda: serving(sizes)),
    }
    parts = [part for name, part in all_parts.items() if name in chosen]
    FILE.parent.mkdir(parents=True, exist_ok=True)
    text = f"### `python scripts/benchmark.py hardware` on {machine()}\n"
    for number, (name, part) in enumerate(parts, 1):
        say(f"{name.lower()}, {number} of {len(parts)}", dated=True)
        start = time.perf_counter()
        try:
            of_part = f"{part()}\n\nMeasured in {time.perf_counter() - start:.0f} s."
        except ModuleNotFoundError as error:
            of_part = f"Left out: {error.name} is not installed."
        except (RuntimeError, ValueError, TypeError) as error:  # one part that fails leaves the others
            of_part = f"Not measured: {type(error).__name__}: {str(error).strip().splitlines()[0]}"
            wrong.append(f"{name.lower()}: {of_part[0].lower()}{of_part[1:]}")
        text += f"\n**{name}.** {of_part}\n"
        FILE.write_text(text, encoding="utf-8")
        print(f"\n**{name}.** {of_part}", flush=True)
    for sentence in wrong:
        say(f"hardware: {sentence}")
    say(f"written: {FILE}, to be pasted into docs/notes/performance.md")
    return 1 if wrong else 0


def _checked(platform: str, wrong: list[str]) -> str:
    """Return the table of kernels, and add a sentence for each wrong one. Several checks compile side by side."""
    jax.clear_caches()  # so that each kernel is traced as it is now
    all_checks, results = kernels.checks(platform), []
    names = dict.fromkeys(kernel for check in all_checks for kernel in check.kernels)
    of_kernels = [check._replace(kernels=(name,)) for name in names for check in all_checks if name in check.kernels]
    with Bar("checking kernels", every=EVERY) as bar, ThreadPoolExecutor(os.cpu_count()) as pool:
        for found in pool.map(lambda check: [*kernels.found(check, platform)], of_kernels):
            results += found
            bar.advance(1, len(of_kernels))
    wrong += [result.wrong for result in results if result.wrong]
    title = "Values and gradients beside the oracle's: the largest error of a token, as a share of its norm or, if"
    return f"{title} that is more, of the root mean square of all tokens' norms.\n\n{kernels.report(results)}"


def step(sizes: Sizes, B: int, rounds: int) -> str:
    """Return a table of a long run's update, beside a plain GPT-2 in PyTorch and the prediction of `scaling`."""
    settings, chip = dataclasses.replace(_settings(sizes, B), unroll=True), chip_of(jax.devices()[0].device_kind)
    peak = chip.peak if chip else matmul_peak(time.perf_counter, settings.dtype)
    update, begin = scaling.update(settings, Placement(""))
    estimate = scaling.estimated(update, settings, chip or H100._replace(peak=peak), 1)
    candidates = {"this library, packed documents, unrolled layers": _updates(update, begin(), settings)}
    compiled = jax.default_backend() != "cpu"
    theirs = rival.steps(sizes.model, B, settings.dtype, compiled=compiled)
    if theirs is not None:
        candidates[f"a plain GPT-2 in PyTorch, windows{', torch.compile' * compiled}"] = theirs

    def row(name: str, said: str, seconds: float) -> list[str]:
        rates = [f"{flops / peak / seconds:.0%}" for flops in (estimate.flops, estimate.flops - estimate.of_pairs / 2)]
        return [name, said, f"{B * settings.l_max / seconds:.0f}", *rates, f"{seconds / ours:.2f}"]

    timings = alternate(candidates, rounds)
    ours = timings[next(iter(candidates))].median
    rows = [row(name, str(timing), timing.median) for name, timing in timings.items()]
    if chip:
        seconds = estimate.seconds()[0]
        rows.append(row("predicted by `benchmark.py scaling` for this library", f"{1e3 * seconds:.1f}", seconds))
    of = "as specified" if chip else "that of the fastest matrix product here; nothing is predicted for this device"
    title = f"GPT-2 of {', '.join(f'{k} = {v}' for k, v in sizes.model.items())}, batch {B}, AdamW, {settings.dtype}"
    title += f" unless noted, {N_DOCUMENTS} documents a row; the peak is {peak / 1e12:.3g} TFLOP/s, {of}."
    title += "" if theirs else " PyTorch is not installed."
    header = ["", "ms", "tokens/s", "MFU, attention in full", "by half", "library's speed / this row's"]
    return f"{title}\n\n{table(header, rows)}"


def attentions(sizes: Sizes, rounds: int) -> str:
    """Return a table of causal attention, forward and backward, beside plain JAX and PyTorch."""
    kernel, dtype, rows = _plain_kernel(), jnp.dtype(resolved("auto")), []
    peak = matmul_peak(time.perf_counter, dtype.name)
    for size in sizes.attention:
        for passes in attention.PRODUCTS:
            timing = attention.timings(["auto"], rounds, size, dtype, passes, kernel)
            rate = attention.flops(*size, passes) / timing["auto"].median
            of_each = [str(timing[name]) if name in timing else "not installed" for name in ("auto", "plain", "torch")]
            ratios = [_ratio(timing.get(name), timing["auto"]) for name in ("plain", "torch")]
            what = f"{' x '.join(map(str, size))}, {passes}"
            rows.append([what, *of_each, *ratios, f"{rate / 1e12:.3g}", f"{rate / peak:.0%}"])
    header = ["heads x tokens x rows", "this library, ms", f"plain JAX ({kernel})", "PyTorch SDPA"]
    header += ["plain / this", "PyTorch / this", "TFLOP/s", "of a matrix product's"]
    return f"Causal, {dtype.name}.\n\n{table(header, rows)}"


def decoding(sizes: Sizes, rounds: int) -> str:
    """Return a table of greedy generation, beside plain JAX and Hugging Face's, and one of a further token."""
    dtype, (l, n), rows, further = resolved("auto"), sizes.generated, [], []
    config = DTransformerConfig(**sizes.model, variant=GPT2)
    model, theirs = decode.generator(config, dtype), decode.hugging_face(config)
    theta = reference.random_parameters(sizes.model, jnp.dtype(dtype))
    generated = jax.jit(lambda theta, x: reference.generated(theta, x, n, H=config.H))
    for B in (1, 16):
        prompts = np.random.default_rng(0).integers(config.N_V, size=(B, l))
        candidates = {"ours": decode.greedy(model, prompts, n)}
        candidates["plain"] = functools.partial(_answered, generated, theta, jnp.asarray(prompts))
        if theirs is not None:
            narrow = theirs.to(getattr(decode.pytorch(), dtype))
            candidates["theirs"] = decode.continuing(narrow)(prompts, decode.pytorch().get_num_threads(), n)
        timing = alternate(candidates, rounds)
        ours = timing["ours"]
        of_each = [str(timing[k].of_each(n)) if k in timing else "not installed" for k in ("ours", "plain", "theirs")]
        ratios = [_ratio(timing.get(name), ours) for name in ("plain", "theirs")]
        rows.append([str(B), *of_each, *ratios, f"{B * n / ours.median:.0f}"])
    header = ["batch", "this library, ms per step", "plain JAX", "Hugging Face", "plain / this", "Hugging Face / this"]
    title = f"The same model, greedy, {n} tokens after prompts of {l}, {dtype}; reading the prompt is counted."
    chip = chip_of(jax.devices()[0].device_kind)
    for B in (1, 16, 64):
        token = alternate({"": decode.steps_at(model, B, l + n, n)}, rounds)[""].of_each(n)
        rate = decode.bytes_read(model, B, l + n // 2) / token.median
        share = f"{rate / chip.bandwidth:.0%}" if chip else "-"
        counts = map(str, programs.kernels_in_loop(decode.loop(model, B, l + n).as_text(), depth=2))
        further.append([str(B), str(token), *counts, f"{rate / 1e9:.0f}", share])
    columns = ["batch", "ms of a further token", "kernels", "drawn by top-k and top-p", "GB/s of weights and cache"]
    columns.append("of the memory's bandwidth")
    return f"{title}\n\n{table([*header, 'tokens/s'], rows)}\n\n{table(columns, further)}"


def training(sizes: Sizes, rounds: int) -> str:
    """Return a table of train.py's loop on real text, beside the bare update."""
    settings = _settings(sizes, sizes.B[0])
    compiled, begin = scaling.update(settings, Placement(""))
    bare = alternate({"": _updates(compiled, begin(), settings)}, rounds)[""].median
    return _of_command("train_speed").training(settings, settings.batch_size * settings.l_max / bare)


def serving(sizes: Sizes) -> str:
    """Return a table of clients of serve.py."""
    config = DTransformerConfig(**sizes.model, variant=GPT2)
    return _of_command("serve_speed").serving(config, resolved("auto"), *sizes.served)


def _of_command(name: str) -> Any:
    """Return a module, whose part alone needs what another command needs."""
    return importlib.import_module(f"training.commands.{name}")


def _settings(sizes: Sizes, B: int) -> Settings:
    return dataclasses.replace(scaling.Case("gpt2", "", "", B).settings(sizes.model), dtype=resolved("auto"))


def _answered(generated: Callable[..., jax.Array], theta: Any, x: jax.Array) -> np.ndarray:
    with reference.in_use():
        return np.asarray(generated(theta, x))


def _updates(compiled: Any, state: Any, settings: Settings) -> Callable[[], object]:
    """Return a call that trains on a batch of packed documents."""
    B, l = settings.batch_size, settings.l_max
    number = np.broadcast_to(N_DOCUMENTS * np.arange(l) // l, (B, l))
    first = np.searchsorted(number[0], number[0])
    batch = {"x": np.random.default_rng(0).integers(settings.N_V, size=(B, l)), "segment_ids": number + 1}
    batch |= {"positions": np.broadcast_to(np.arange(l) - first, (B, l))}
    arrays: dict[str, Any] = {name: jnp.asarray(a, jnp.int32) for name, a in batch.items()}
    arrays["loss_mask"] = jnp.asarray(np.append(np.diff(number) == 0, np.zeros((B, 1), bool), axis=1))
    carried, key = [state], jax.random.key(0)

    def call() -> None:
        carried[0], metrics = compiled(carried[0], arrays, np.int32(1), key)
        jax.block_until_ready(metrics)

    return call


def chip_of(kind: str) -> scaling.Chip | None:
    """Return the specification of a device by its name; None if it is not known.

    Example:
        >>> chip_of("TPU v5 lite") == scaling.CHIPS["v5e"]
        True
    """
    return next((chip for name, chip in CHIPS.items() if name in kind), None)


def _plain_kernel() -> str:
    """Return the kernel of attention in plain JAX."""
    return "xla" if resolved("auto") == "float32" else PLAIN[jax.default_backend()]


def _ratio(other: Timing | None, ours: Timing) -> str:
    return f"{other.median / ours.median:.2f}" if other else "-"
