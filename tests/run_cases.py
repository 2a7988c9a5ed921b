"""Complete runs with small random models, for the tests of what uses a run."""

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from training.data.special_tokens import SpecialTokens
from training.data.tokenizers import ByteTokenizer, CharacterTokenizer, LibraryTokenizer, Tokenizer, build_tokenizer
from training.runs.directory import Description, RunDirectory
from training.tasks import TASKS, settings_from
from training.tasks.models import init_model, model_config

SIZES = {"H": 2, "d_e": 8, "d_mlp": 12, "l_max": 40, "dropout": 0.1}  # a trained model is used without dropout
LETTERS = CharacterTokenizer("abcdefghij .")
LABELS = ("ham", "spam", "other")


def make_run(
    path: Path, task: str, tokenizer: Tokenizer = LETTERS, labels: tuple[str, ...] = LABELS, **values: Any
) -> Path:
    """Write a run as training leaves it; the parameters are random, with large logits."""
    layers = {"L_enc": 1, "L_dec": 1} if task == "ed" else {"L": 2}
    settings = settings_from({**SIZES, **layers, **values}, task=task)
    config = model_config(settings, tokenizer.N_V)
    labels = labels if TASKS[task].records == "labeled" else ()
    files = RunDirectory(path)
    files.note(Description(settings, config, labels, {"tokenizer": tokenizer.fingerprint()}), tokenizer)
    theta = init_model(jax.random.key(3), task, config, scheme="glorot", N_C=len(labels))
    rng = np.random.default_rng(4)
    noisy = jax.tree.map(lambda a: (np.asarray(a) + 0.3 * rng.standard_normal(a.shape)).astype(np.float32), theta)
    files.save_parameters(noisy)
    return path


@contextlib.contextmanager
def files_end_at(size: int) -> Iterator[None]:
    """As if the disk were full once a file reaches this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


BYTES = ByteTokenizer()
TEMPLATE = """{{ bos_token }}{% for message in messages %}
{%- if message.role == "system" and "never" in message.content %}{{ raise_exception("no such system") }}{% endif %}
{{- message.role }}: {{ message.content }}<end>{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""


def conversing() -> LibraryTokenizer:
    """A tokenizer with a chat template, two end tokens, and bytes for whatever it has no token for."""
    made = build_tokenizer("bpe", ["assistant: the cat sat, user: the rat sat on the mat, system: " * 9], N_V=290)
    assert isinstance(made, LibraryTokenizer)
    inner = made.inner
    inner.add_special_tokens(["<s>", "</s>", "<end>"])
    bos, eos, end = map(inner.token_to_id, ("<s>", "</s>", "<end>"))
    special = SpecialTokens(end + 1, bos=bos, eos=eos, others=(end,), ends=(end,))
    return LibraryTokenizer(inner, special=special, chat_template=TEMPLATE)
