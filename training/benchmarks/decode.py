"""Generation from a cache, compared with Hugging Face's, and with reading weights and cache."""

import dataclasses
import importlib
import importlib.util
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from algorithms import GPT2, LLAMA, DTransformerConfig, DTransformerParams, init_d_transformer
from training.benchmarks.timing import alternate, pytorch, pytorch_device, table
from training.generation import Generator, Sampling, decoding, states
from training.generation.buckets import capacity
from training.generation.prompts import ROOM
from training.generation.sampling import SamplingArrays

SMALL = DTransformerConfig(N_V=2048, l_max=1280, L=6, H=8, d_e=256, d_mlp=1024, variant=GPT2)
LLAMA_135M = DTransformerConfig(N_V=49152, l_max=2048, L=30, H=9, H_kv=3, d_e=576, d_mlp=1536, tied=True, variant=LLAMA)
PROMPT, L_GEN = 32, 64


def parameters(config: DTransformerConfig, dtype: Any = jnp.float32) -> DTransformerParams:
    """Return random parameters."""
    theta = init_d_transformer(jax.random.key(0), config, scheme="gpt2")
    return jax.tree.map(lambda a: a.astype(dtype), theta)


def generator(config: DTransformerConfig, dtype: Any = jnp.float32, **options: Any) -> Generator:
    """Return a model with random parameters."""
    return Generator(parameters(config, dtype), config, **options)


def greedy(model: Generator, prompts: np.ndarray, n: int = L_GEN) -> Callable[[], Any]:
    """Return a call that continues prompts by n tokens."""
    lengths, key = np.full(len(prompts), prompts.shape[1]), jax.random.key(0)
    return lambda: np.asarray(model.generate(prompts, lengths=lengths, l_gen=n, tau=0.0, key=key))


def hugging_face(config: DTransformerConfig) -> Any:
    """Return Hugging Face's model of the same sizes, with random parameters; None if it is not installed."""
    if pytorch() is None or importlib.util.find_spec("transformers") is None:
        return None
    transformers = importlib.import_module("transformers")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    tokens = {"vocab_size": config.N_V, "bos_token_id": 0, "eos_token_id": None}
    if config.variant == GPT2:
        sizes = {"n_layer": config.L, "n_embd": config.d_e, "n_head": config.H, "n_positions": config.l_max}
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, **tokens)).to(pytorch_device()).eval()
    sizes = {"num_hidden_layers": config.L, "hidden_size": config.d_e, "intermediate_size": config.d_mlp}
    sizes |= {"num_attention_heads": config.H, "num_key_value_heads": config.H_kv, "tie_word_embeddings": True}
    sizes |= {"max_position_embeddings": config.l_max}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **tokens)).to(pytorch_device()).eval()


def continuing(model: Any) -> Callable[..., Callable[[], Any]]:
    """Return a function (prompts, threads, n) → a call that continues the prompts with a Hugging Face model."""
    torch = importlib.import_module("torch")

    def of_prompts(prompts: np.ndarray, threads: int, n: int = L_GEN) -> Callable[[], Any]:
        x = torch.from_numpy(prompts).to(model.device)
        options = {"do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(x), "use_cache": True}

        def call() -> Any:
            torch.set_num_threads(threads)
            with torch.inference_mode():
                return model.generate(x, min_new_tokens=n, max_new_tokens=n, **options).cpu()  # waits for a GPU

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
        row = [str(B), str(ours.of_each(L_GEN))]
        if not timing:
            rows.append([*row, "not installed", "-"])
        else:
            best = min(timing.values())
            rows.append([*row, str(best.of_each(L_GEN)), f"{best.median / ours.median:.1f}"])
    return table(["batch", "this library, ms per step", "Hugging Face, ms per step", "Hugging Face / this"], rows)


def narrow(rounds: int) -> str:
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
        [name, str(t.of_each(L_GEN)), *(f"{other.median / t.median:.2f}" if other else "-" for other in theirs)]
        for name, t in timing.items()
    ]
    title = f"The same Llama, batch 1, greedy, {L_GEN} tokens after a prompt of {PROMPT}.\n\n"
    return title + table(["", "ms per step", "times Hugging Face's speed in float32", "in bfloat16"], rows)


WORK = {1: (512, 32), 8: (32, 16), 16: (32, 16)}  # batch size → tokens of each prompt, and tokens generated


def llama(rounds: int) -> str:
    """Return a table of a Llama's time to the first token, and per later one, in float32, here and there."""
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
    header = ["ms for", "this library", "Hugging Face", "Hugging Face / this"]
    return f"A Llama of 135M parameters, float32, greedy.\n\n{table(header, rows)}"


def steps_at(model: Generator, B: int, context: int, n: int) -> Callable[[], Any]:
    """Return a call that generates n tokens of B sequences; the last is preceded by `context` tokens."""
    state, options = _begun(model, B, context)
    ready = [state]

    def call() -> None:
        begun = ready.pop()._replace(slot=options["stop"] - n)
        ready.append(jax.block_until_ready(decoding.decode(model.weights, None, begun, **options)))

    return call


def loop(model: Generator, B: int, context: int) -> Any:
    """Return the compiled loop of `steps_at`: over the tokens, in a loop over the keys that are drawn at once."""
    state, options = _begun(model, B, context)
    return decoding.decode.lower(model.weights, None, state, **options).compile()


def _begun(model: Generator, B: int, context: int) -> tuple[states.State, dict[str, Any]]:
    state = states.empty_state(model.weights, B=B, C=capacity(context + ROOM), bos=0)
    greedy = SamplingArrays.of([Sampling(tau=0.0)] * B, model.config.N_V)
    keys = jax.random.split(jax.random.key(0), B)
    return state, {"keys": keys, "stop": jnp.asarray(context, jnp.int32), "sampling": greedy}


def bytes_read(model: Generator, B: int, context: int) -> int:
    """Return the bytes of the weights and of the written cache, which a step reads: all weights, except for all but B
    columns of W_p and of an untied W_e.
    """
    config, weights = model.config, _read(model)
    of_token = config.L * config.H_kv * (config.d_attn + config.d_mid) * weights[-1].dtype.itemsize
    return sum(a.nbytes for a in weights) + B * context * of_token


def _read(model: Generator) -> list[Any]:
    weights: Any = model.weights
    W_u = weights.W_e if weights.W_u is None else weights.W_u
    return jax.tree.leaves((weights.layers, weights.norm, W_u))


def beside_reading(config: DTransformerConfig, B: int, contexts: Sequence[int], rounds: int) -> list[list[str]]:
    """Return for each context the time of a step, beside that in which a sum reads as many bytes as the weights and the
    written keys and values have. The caches have room for `ROOM` more tokens.
    """
    model, n = generator(config), 16
    read = jax.block_until_ready(_read(model))
    arrays = [np.asarray(a) for a in read]
    add_up = jax.jit(lambda arrays: sum(a.sum() for a in arrays))
    sums = {"NumPy": lambda: [a.sum() for a in arrays], "JAX": lambda: add_up(read).block_until_ready()}
    timing = alternate({str(context): steps_at(model, B, context, n) for context in contexts} | sums, rounds)
    rate = sum(a.nbytes for a in read) / min(timing.pop(name).median for name in sums)
    rows = []
    for context, t in timing.items():
        n_bytes = bytes_read(model, B, int(context) - n // 2)
        of_reading = n_bytes / rate
        ratio = f"{t.median / n / of_reading:.2f}"
        rows.append([f"{B} x {context}", str(t.of_each(n)), f"{n_bytes / 1e6:.0f}", f"{1e3 * of_reading:.2f}", ratio])
        rows[-1].append(f"{rate / 1e9:.1f}")
    return rows


def run(rounds: int) -> str:
    """Return the measurements of a small model and of a Llama of 135M parameters as Markdown tables."""
    header = ["batch x tokens of context", "ms per step", "MB of weights and written cache", "ms to read them"]
    header += ["step / reading", "GB/s of the faster sum"]
    small = [row for B in (1, 16) for row in beside_reading(SMALL, B, (64, 256, 1024), rounds)]
    large = beside_reading(dataclasses.replace(LLAMA_135M, l_max=4352), 1, (64, 1000, 4000), rounds)
    return (
        f"L = 6, d_e = 256, H = 8, float32, greedy, {L_GEN} tokens after prompts of {PROMPT}.\n\n"
        f"{beside_pytorch(rounds)}\n\n"
        f"The same model: a step, and reading what it must read.\n\n{table(header, small)}\n\n"
        f"A Llama of 135M parameters, float32, batch 1: the same.\n\n{table(header, large)}"
    )
