"""Twenty reports from public trackers, each re-created in a small decoder: the sentence on the page is the check's."""

import math
import pathlib
import re

import pytest

from tests.foreign_code import attention, decoder, modern, torch
from tests.training.foreign.test_checking import HALVES, nothing, of_means
from training.foreign.checking import diagnose
from training.foreign.making import make_case

PAGE = pathlib.Path(__file__).resolve().parents[3] / "docs" / "public-bugs.md"


def shifted_twice(logits, x):
    return torch.nn.functional.cross_entropy(logits[0, :-2], x[0, 2:])


BUGS = {
    "coreylowman/dfdx#171": (decoder(divisor=lambda d: math.sqrt(18)), {}),
    "mlc-ai/mlc-llm#3426": (decoder(scale=True), {}),
    "esceptico/perceiver-io#9": (decoder(divisor=lambda d: d**-0.5), {}),
    "tenstorrent/tt-metal#56789": (decoder(divisor=lambda d: math.sqrt(3)), {}),
    "pytorch/pytorch#41508": (lambda case, dtype: attention(case, dtype, weights=nothing), {"algorithm": 5}),
    "ml-explore/mlx-lm#390": (decoder(window=4), {"edge": "window"}),
    "harvardnlp/annotated-transformer#110": (decoder(post=True), {}),
    "Blaizzy/mlx-embeddings#81": (decoder(tanh=True), {}),
    "vllm-project/vllm#51665": (decoder(tied=True), {}),
    "huggingface/transformers#47394": (decoder(loss=shifted_twice), {}),
    "huggingface/transformers#34191": (decoder(loss=of_means), {}),
    "huggingface/transformers#47403": (modern(neighbors=True), {"variant": "LLAMA"}),
    "huggingface/candle#3746": (modern(base=5e6), {"variant": "LLAMA"}),
    "rajveer43/VeloxQuant-MLX#389": (modern(**{"parts": HALVES, "position of the part": True}), {"variant": "LLAMA"}),
    "onnx/onnx#7274": (modern(tiled=True), {"variant": "LLAMA"}),
    "mosaicml/llm-foundry#371": (modern(inverse=lambda v, eps: (v + eps).sqrt()), {"variant": "LLAMA"}),
    "allenai/OLMo#281": (modern(inverse=lambda v, eps: 1 / (v.sqrt() + 0.001)), {"variant": "LLAMA"}),
    "NVIDIA/cutlass#1112": (modern(eps=1e-4), {"variant": "LLAMA"}),
    "linkedin/Liger-Kernel#74": (modern(offset=1), {"variant": "LLAMA"}),
    "ollama/ollama#9692": (modern(logits=lambda Y: 30 * (Y / 30).tanh()), {"variant": "LLAMA"}),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("report", BUGS)
def test_the_check_says_what_the_page_has(report):
    observe, options = BUGS[report]
    case = make_case(**options)
    (departure,) = diagnose(case, observe(case, "float64")).departures
    (row,) = (line for line in PAGE.read_text("utf-8").splitlines() if f"[{report}]" in line)
    assert row.split(" | ")[2] == f"{departure.algorithm}, {departure.line}"
    assert row.split(" | ")[3].rstrip(" |") == departure.text


def test_the_page_has_no_others():
    assert re.findall(r"\| \[(.+?)\]\(", PAGE.read_text("utf-8")) == [*BUGS]
