"""Every named variant that transformers has, against its own code: nothing departs."""

import pytest

from tests.interchange_cases import libraries
from training.commands.crosscheck import main
from training.foreign import check, from_transformers
from training.foreign.checking import variant_of
from training.interchange.architectures import WRITTEN_AS

_, transformers = libraries()

WITHOUT = (
    "smollm3", "internlm3", "bamba", "granitemoe", "granitemoeshared", "deepseek_v2", "embedding_gemma",
    "torch.nn.Transformer", "gemma4_text", "gemma4_unified_text", "llada",
)  # fmt: skip
"""Kinds that transformers lacks, that no named variant has the lines of, or whose sizes or vocabularies no case has."""
KINDS = [kind for task in ("d", "e", "ed") for kind in WRITTEN_AS[task] if kind not in WITHOUT]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_departs(kind):
    assert kind in transformers.CONFIG_MAPPING
    report = check(from_transformers(kind), variant=variant_of(kind))
    assert list(report.walk.status.values()).count("equal") >= 15


@pytest.mark.parametrize(("of_sums", "told", "dtype"), [
    ("am", "", "float32"), ("m", "@l*/8/out", "float32"), ("a", "@l*/6/out", "float64"),
])  # fmt: skip
def test_a_post_norm_of_the_sum_is_named(of_sums, told, dtype, monkeypatch):
    def forward(self, hidden_states, **options):
        X = self.input_layernorm(hidden_states)
        A, _ = self.self_attn(hidden_states=X, **options)
        n, X = self.post_attention_layernorm, hidden_states
        X = n(X + A) if "a" in of_sums else X + n(A)
        n, A = self.post_feedforward_layernorm, self.mlp(self.pre_feedforward_layernorm(X))
        return n(X + A) if "m" in of_sums else X + n(A)

    monkeypatch.setattr(transformers.models.gemma2.modeling_gemma2.Gemma2DecoderLayer, "forward", forward)
    with pytest.raises(AssertionError, match="after the sum") as raised:
        check(from_transformers("gemma2"), variant="GEMMA2", dtype=dtype)
    assert f'--expect "post_norm{told}=sum"' in str(raised.value)


def test_a_kind_of_model_is_checked_by_its_name(capsys):
    assert main(["--of", "transformers:gpt2"]) == 0
    assert "47 equal" in capsys.readouterr().out
    assert main(["--of", "transformers:gpt2", "--dtype", "float32"]) == 0


@pytest.mark.parametrize("kind", ["gpt5", "smollm3"])
def test_kinds_are_known(kind):
    with pytest.raises(ValueError, match=r"--of transformers:KIND: expected one of bart, .*, gpt2, .*, got"):
        variant_of(kind)
