"""The code that the library transformers has of a kind of model, by its name, such as "gpt2"; nothing is downloaded."""

import importlib
import pathlib
import tempfile
from typing import Any

from .cases import Case
from .checking import Observe
from .recording import Recording, record_torch

__all__ = ["from_transformers", "variant_of"]

TASKS = {8: "ed", 9: "e", 10: "d"}
MODELS = {8: "AutoModelForSeq2SeqLM", 9: "AutoModelForMaskedLM", 10: "AutoModelForCausalLM"}
VARIANTS = {
    "deepseek_v3": "DEEPSEEK", "distilbert": "BERT", "gemma3_text": "GEMMA3", "glm_moe_dsa": "GLM5", "gpt_neox": "NEOX",
    "granitemoehybrid": "GRANITE_HYBRID", "hunyuan_v1_dense": "HUNYUAN", "llama4_text": "LLAMA4",
    "modernbert-decoder": "ETTIN", "qwen3_5_moe_text": "QWEN3_5_MOE", "qwen3_5_text": "QWEN3_5",
}  # fmt: skip
"""A kind → the variant with its lines, where that has another name."""
RECURRENCES = "GatedDelta", "KimiDelta", "Mamba2", "Parallel", "RGLRU", "ShortConvolution"


def from_transformers(kind: str) -> Observe:
    """Observe transformers' model of a kind such as "gpt2", of the case's sizes and with its θ, up to the logits.

    `check(from_transformers("llama"), variant="LLAMA")` compares every line.
    """

    def observe(case: Case, dtype: str) -> Recording:
        from training.interchange import save_pretrained  # noqa: PLC0415  # JAX

        from .making import config_of, of_library  # noqa: PLC0415

        torch: Any = importlib.import_module("torch")
        transformers: Any = importlib.import_module("transformers")
        # PyTorch's grouped product of experts has no float64, and transformers' recurrences are in float32
        is_recurrent = any(type(line).__name__ in RECURRENCES for line in case.record.attentions)
        of_numbers = "float32" if ("experts" in case.base or is_recurrent) and dtype == "float64" else dtype
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / kind
            save_pretrained(path, of_library(case), config_of(case), to=kind)
            given = {"dtype": getattr(torch, of_numbers), "attn_implementation": "eager"}
            model = getattr(transformers, MODELS[case.algorithm]).from_pretrained(path, **given).eval()
        if (b_u := model._buffers.pop("final_logits_bias", None)) is not None:  # a parameter of θ
            model.final_logits_bias = torch.nn.Parameter(b_u)
        names = ("input_ids", "decoder_input_ids") if case.algorithm == 8 else ("input_ids",)
        inputs = [torch.tensor([case.inputs[n]]) for n in ("z", "x") if n in case.inputs]
        tokens = dict(zip(names, inputs, strict=True))
        return record_torch(lambda: model(**tokens, use_cache=False).logits, model)

    return observe


def variant_of(kind: str) -> str:
    """The named variant that has the lines of a kind of transformers' models.

    Raises:
        ValueError: if there is none.
    """
    from training.interchange.architectures import WRITTEN_AS  # noqa: PLC0415

    from .vocabulary import named_choices  # noqa: PLC0415

    known = named_choices(2)
    found = {k: VARIANTS.get(k, k.upper()) for task in TASKS.values() for k in WRITTEN_AS[task]}
    found = {k: name for k, name in found.items() if name in known}
    if kind not in found:
        raise ValueError(f"--of transformers:KIND: expected one of {', '.join(found)}, got {kind!r}")
    return found[kind]
