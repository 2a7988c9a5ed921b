"""Generation from a cache, compared with Hugging Face's, by context length, and with the memory bandwidth."""

import importlib
import importlib.util
import logging
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import GPT2, LLAMA, DTransformerConfig, init_d_transformer
from scripts.benchmarks.timing import Timing, alternate, table
from training.generation import Generator, decoding, states
from training.generation.cache import capacity

SMALL = DTransformerConfig(N_V=2048, l_max=1280, L=6, H=8, d_e=256, d_mlp=1024, variant=GPT2)
LLAMA_135M = DTransformerConfig(N_V=49152, l_max=2048, L=30, H=9, H_kv=3, d_e=576, d_mlp=1536, tied=True, variant=LLAMA)
GPT2_124M = DTransformerConfig(N_V=50257, l_max=1024, L=12, H=12, d_e=768, d_mlp=3072, variant=GPT2)
PROMPT, L_GEN = 32, 64


def generator(config: DTransformerConfig, **options: Any) -> Generator:
    """Return a model with random parameters."""
    return Generator(init_d_transformer(jax.random.key(0), config, scheme="gpt2"), config, **options)


def greedy(model: Generator, prompts: np.ndarray, n: int = L_GEN) -> Callable[[], Any]:
    """Return a call that continues prompts by n tokens."""
    lengths, key = np.full(len(prompts), prompts.shape[1]), jax.random.key(0)
    return lambda: np.asarray(model.generate(prompts, lengths=lengths, l_gen=n, tau=0.0, key=key))


def hugging_face(config: DTransformerConfig) -> Any:
    """Return Hugging Face's model of the same sizes, with random parameters; None if it is not installed."""
    if not (importlib.util.find_spec("torch") and importlib.util.find_spec("transformers")):
        return None
    transformers = importlib.import_module("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokens = {"vocab_size": config.N_V, "bos_token_id": 0, "eos_token_id": None}
    if config.variant == GPT2:
        sizes = {"n_layer": config.L, "n_embd": config.d_e, "n_head": config.H, "n_positions": config.l_max}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **tokens)).eval()
    sizes = {"num_hidden_layers": config.L, "hidden_size": config.d_e, "intermediate_size": config.d_mlp}
    sizes |= {"num_attention_heads": config.H, "num_key_value_heads": config.H_kv, "tie_word_embeddings": True}
    sizes |= {"max_position_embeddings": config.l_max}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **tokens)).eval()


def continuing(model: Any) -> Callable[..., Callable[[], Any]]:
    """Return a function (prompts, threads, n) → a call that continues the prompts with a Hugging Face model."""
    torch = importlib.import_module("torch")

    def of_prompts(prompts: np.ndarray, threads: int, n: int = L_GEN) -> Callable[[], Any]:
        x = torch.from_numpy(prompts)
        options = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(x), "use_cache": True}

        def call() -> Any:
            torch.set_num_threads(threads)
            with torch.inference_mode():
                return model.generate(x, min_new_tokens=n, max_new_tokens=n, **options)

        return call

    return of_prompts


def beside_pytorch(rounds: int) -> str:
    """Return a table of generation here and by Hugging Face (at its faster number of threads), at batch 1 and 16."""
    model, theirs = generator(SMALL), hugging_face(SMALL)
    rows = []
    for B in (1, 16):
        prompts = np.random.default_rng(0).integers(SMALL.N_V, size=(B, PROMPT))
        candidates = {"ours": greedy(model, prompts)}
        if theirs is not None:
            candidates |= {f"theirs on {n}": continuing(theirs)(prompts, n) for n in {1, os.cpu_count() or 1}}
        timing = alternate(candidates, rounds)
        ours = timing.pop("ours")
        row = [str(B), per(ours, L_GEN)]
        if not timing:
            rows.append([*row, "not installed", "-"])
        else:
            best = min(timing.values())
            rows.append([*row, per(best, L_GEN), f"{best.median / ours.median:.1f}"])
    return table(["batch", "this library, ms per step", "Hugging Face, ms per step", "Hugging Face / this"], rows)


def beside_llama(rounds: int) -> str:
    """Return a table of a Llama of 135M parameters at batch 1, here and at Hugging Face, by type of the weights."""
    prompts = np.random.default_rng(0).integers(LLAMA_135M.N_V, size=(1, PROMPT))
    candidates = {
        "float32": greedy(generator(LLAMA_135M), prompts),
        "int8 weights": greedy(generator(LLAMA_135M, int8=True), prompts),
    }
    for dtype in ("float32", "bfloat16"):
        if (model := hugging_face(LLAMA_135M)) is not None:
            model = model.to(getattr(importlib.import_module("torch"), dtype))
            candidates[f"Hugging Face, {dtype}"] = continuing(model)(prompts, os.cpu_count() or 1)
    timing = alternate(candidates, rounds)
    theirs = [timing.get(f"Hugging Face, {dtype}") for dtype in ("float32", "bfloat16")]
    rows = [
        [name, per(t, L_GEN), *(f"{other.median / t.median:.2f}" if other else "-" for other in theirs)]
        for name, t in timing.items()
    ]
    return table(["", "ms per step", "times Hugging Face's speed in float32", "in bfloat16"], rows)


WORK = {1: (512, 32), 8: (32, 16), 16: (32, 16)}
"""Batch size → tokens of each prompt, and tokens generated."""


def llama_by_work(rounds: int) -> str:
    """Return a table of that Llama's time in float32, here and at Hugging Face, to the first token and per later token.

    The latter is the time of all tokens but the first, divided by their number.
    """
    ours, theirs = generator(LLAMA_135M), continuing(hugging_face(LLAMA_135M))
    rows = []
    for B, (l, n) in WORK.items():
        prompts = np.random.default_rng(0).integers(LLAMA_135M.N_V, size=(B, l))
        candidates = {}
        for tokens in (1, n):
            candidates[f"ours {tokens}"] = greedy(ours, prompts, tokens)
            candidates[f"theirs {tokens}"] = theirs(prompts, os.cpu_count() or 1, tokens)
        timing = alternate(candidates, rounds)
        first = [timing[f"{whose} 1"].median for whose in ("ours", "theirs")]
        all_n = [timing[f"{whose} {n}"].median for whose in ("ours", "theirs")]
        step = [(b - a) / (n - 1) for a, b in zip(first, all_n, strict=True)]
        for what, (a, b) in ((f"the first token after {B} x {l}", first), (f"a further step of {B}", step)):
            rows.append([what, f"{1e3 * a:.1f}", f"{1e3 * b:.1f}", f"{b / a:.2f}"])
    return table(["ms for", "this library", "Hugging Face", "Hugging Face / this"], rows)


def per(timing: Timing, n: int) -> str:
    """Return the time per token (or read) of n."""
    median, low, high = (1e3 * seconds / n for seconds in timing)
    return f"{median:.2f} ({low:.2f}-{high:.2f})"


def steps_at(model: Generator, context: int, n: int) -> Callable[[], Any]:
    """Return a call that generates n tokens; the last is preceded by `context` tokens."""
    state = states.empty_state(model.weights, B=1, C=capacity(context), bos=0)
    keys, greedy = jax.random.split(jax.random.key(0), 1), model.sampling_arrays([{"tau": 0.0}])
    ready = [state]

    def call() -> None:
        stop = jnp.asarray(context - 1, jnp.int32)
        begun = ready.pop()._replace(slot=stop - n)
        options = {"sampling": greedy, "variant": model.config.variant}
        ended = decoding.decode(model.weights, None, begun, keys, stop=stop, **options)
        ready.append(jax.block_until_ready(ended))

    return call


def by_context(rounds: int) -> str:
    """Return a table of the time per token by context length."""
    model, n = generator(SMALL), 32
    contexts = (64, 128, 256, 512, 1024)
    timing = alternate({str(context): steps_at(model, context, n) for context in contexts}, rounds)
    first = timing["64"].median
    rows = [[name, per(t, n), f"{t.median / first:.2f}"] for name, t in timing.items()]
    return table(["tokens of context", "ms per token", "beside 64"], rows)


def beside_memory(rounds: int) -> str:
    """Return a table of the share of the memory bandwidth that generation reaches at GPT-2's size, batch 1."""
    model, n = generator(GPT2_124M), 8
    # Every token reads all weights, except for all but one column of W_p and of an untied W_e.
    weights: Any = model.weights
    W_u = weights.W_e if weights.W_u is None else weights.W_u
    read = jax.block_until_ready(jax.tree.leaves((weights.layers, weights.norm, W_u)))
    n_bytes = sum(a.nbytes for a in read)
    arrays = [np.asarray(a) for a in read]
    add_up = jax.jit(lambda arrays: sum(a.sum() for a in arrays))
    candidates = {
        "generation": steps_at(model, 64, n),
        "sum, NumPy": lambda: [a.sum() for a in arrays],
        "sum, JAX": lambda: add_up(read).block_until_ready(),
    }
    timing = alternate(candidates, rounds)
    reads = {name: n if name == "generation" else 1 for name in candidates}
    rates = {name: n_bytes * reads[name] / t.median / 1e9 for name, t in timing.items()}
    plain = max(rates["sum, NumPy"], rates["sum, JAX"])
    rows = [
        [name, per(timing[name], reads[name]), f"{rates[name]:.1f}", f"{rates[name] / plain:.0%}"] for name in rates
    ]
    return table(["reads all weights once", "ms", "GB/s", "of the faster sum"], rows)


def run(rounds: int) -> str:
    """Return the measurements of a small model and of GPT-2's size as Markdown tables."""
    small = f"L = 6, d_e = 256, H = 8, float32, greedy, {L_GEN} tokens after prompts of {PROMPT}"
    large = "GPT-2's size, 124M parameters, float32, batch 1: generation beside a plain read of the weights"
    context = "The same model, batch 1, by tokens of context"
    parts = ((small, beside_pytorch), (context, by_context), (large, beside_memory))
    return "\n\n".join(f"{title}.\n\n{measure(rounds)}" for title, measure in parts)


def llama(rounds: int) -> str:
    """Return the measurements of a Llama of 135M parameters as a Markdown table."""
    return f"A Llama of 135M parameters, float32, greedy.\n\n{llama_by_work(rounds)}"


def narrow(rounds: int) -> str:
    """Return the measurements of the same Llama with int8 weights as a Markdown table."""
    title = f"The same Llama, batch 1, greedy, {L_GEN} tokens after a prompt of {PROMPT}"
    return f"{title}.\n\n{beside_llama(rounds)}"
