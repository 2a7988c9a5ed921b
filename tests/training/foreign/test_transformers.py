"""Every named variant that transformers has, against its own code: nothing departs."""

import pytest

from tests.interchange_cases import libraries
from training.commands.crosscheck import main
from training.foreign import check, from_transformers
from training.foreign.huggingface import variant_of
from training.interchange.architectures import WRITTEN_AS

_, transformers = libraries()

WITHOUT = (
    "smollm3",
    "internlm3",
    "bamba",
    "granitemoe",
    "granitemoeshared",
    "deepseek_v2",
    "embedding_gemma",
    "torch.nn.Transformer",
)
"""Kinds that no named variant has the lines of, or whose sizes or two vocabularies no case has."""
KINDS = [kind for task in ("d", "e", "ed") for kind in WRITTEN_AS[task] if kind not in WITHOUT]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_departs(kind):
    assert kind in transformers.CONFIG_MAPPING
    report = check(from_transformers(kind), variant=variant_of(kind))
    assert list(report.walk.status.values()).count("equal") >= 15


def test_a_kind_of_model_is_checked_by_its_name(capsys):
    assert main(["--of", "transformers:gpt2"]) == 0
    assert "47 equal" in capsys.readouterr().out
    assert main(["--of", "transformers:gpt2", "--dtype", "float32"]) == 0


@pytest.mark.parametrize("kind", ["gpt5", "smollm3"])
def test_kinds_are_known(kind):
    with pytest.raises(ValueError, match=r"--of transformers:KIND: expected one of bart, .*, gpt2, .*, got"):
        variant_of(kind)
