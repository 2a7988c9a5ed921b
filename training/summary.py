"""What is said of a run when it is complete: how good the model is, beside baselines, and a sample."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from algorithms import d_inference
from training.compressors import compressed_bits_per_byte
from training.data_records import joined_bytes
from training.run_data import RunData
from training.runs import load_run
from training.settings import Settings

SAMPLED = 60  # tokens


def summary(settings: Settings, data: RunData, results: dict[str, float]) -> Iterator[str]:
    """Yields lines on what the trained parameters make of the held-out data.

    Args:
        settings: of the run.
        data: of the run.
        results: of the evaluation on all held-out data.
    """
    yield (
        f"held-out data: loss {results['loss']:.4f} nats per token, perplexity {results['perplexity']:.2f}, "
        f"accuracy {100 * results['accuracy']:.2f} %"
    )
    if "bits_per_byte" in results:
        held_out = joined_bytes(data.corpus.validation)
        others = {f"{name}": bits for name, bits in compressed_bits_per_byte(held_out).items()}
        yield f"bits per byte of the {len(held_out)} held-out bytes:"
        for name, bits in {"this model": results["bits_per_byte"], **others}.items():
            yield f"    {name:<12}{bits:.3f}"


def sample(directory: Path) -> str:
    """Returns a text that a decoder's run makes up with Algorithm 14, or nothing for another task.

    Args:
        directory: of the run.
    """
    run: Any = load_run(directory)
    if run.task != "d":
        return ""
    bos = jnp.array([run.tokenizer.bos_token])
    if run.config.variant.name != "PAPER":
        return ""
    l_gen = min(SAMPLED, run.config.l_max)
    tokens = d_inference(bos, run.theta, l_gen=l_gen, tau=0.7, key=jax.random.key(0)).tolist()
    eos = run.tokenizer.eos_token
    ended = tokens.index(eos) if eos in tokens else len(tokens)
    return f"a sample (Algorithm 14, temperature 0.7):\n{run.tokenizer.decode(tokens[:ended])}"
