"""What is said of a checkpoint when it was converted: its size, its license, and how far it is."""

import json

import pytest

from tests import gguf_cases
from tests import interchange_cases as cases
from training.interchange import convert
from training.interchange.license import license_of

torch, transformers = cases.libraries()
UNKNOWN = "license: not stated in its files"


@pytest.fixture(scope="module")
def model():
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_hidden_layers": 2}
    config = transformers.LlamaConfig(vocab_size=29, **sizes, max_position_embeddings=16, tie_word_embeddings=True)
    return cases.randomized(torch, transformers.LlamaForCausalLM(config))


CARDS = {
    "plain": ("---\nlanguage:\n- en\nlicense: apache-2.0\ntags: [a]\n---\n# Model\n", "license: apache-2.0"),
    "named": ("---\nlicense: other\nlicense_name: 'llama 3'\n---\n", "license: llama 3"),
    "quoted": ('---\r\nlicense: "mit"\r\n---\r\n', "license: mit"),
    "later": ("---\na: b\n---\nlicense: mit\n", UNKNOWN),
    "unended": ("---\nlicense: mit\n", UNKNOWN),
    "of something else": ("---\n  license: mit\n---\n", UNKNOWN),
    "none": ("# Model\nlicense: mit\n", UNKNOWN),
    "long": (f"---\nlicense: {'x' * 999}\n---\n", f"license: {'x' * 60}"),
}


@pytest.mark.parametrize("name", CARDS)
def test_a_card_names_the_license(name, tmp_path):
    card, expected = CARDS[name]
    (tmp_path / "README.md").write_text(card, newline="")
    assert license_of(tmp_path, None) == expected


def test_a_file_of_the_license_is_named(tmp_path):
    (tmp_path / "LICENSE.txt").write_text("Do as you like.")
    assert license_of(tmp_path, None) == "license: see its file LICENSE.txt"
    (tmp_path / "README.md").write_bytes(b"\xff\xfe")
    assert license_of(tmp_path, None) == "license: see its file LICENSE.txt"


@pytest.mark.parametrize("said", ["apache-2.0", None])
def test_a_conversion_says_size_and_license_and_how_far_it_is(said, model, tmp_path):
    fields = {"general.license": said} if said else {}
    path = gguf_cases.write(tmp_path / "model.gguf", model, fields=fields)
    seen = []
    sentence = convert(path, tmp_path / "run", progress=lambda n, total: seen.append((n, total)))
    n = sum(p.numel() for p in model.parameters())
    assert n == 29 * 8 + 2 * (4 * 64 + 3 * 96 + 16) + 8
    size = f"{n:,} parameters, {n * 4 / 1e6:,.1f} MB in float32"
    assert sentence.splitlines()[1] == f"{size}; {f'license: {said}' if said else UNKNOWN}"
    assert sentence.splitlines()[2].startswith(f"note: {path}: eos_token_id: expected a token below N_V = 29, got None")
    assert seen == [(1, 2 * 9 + 2)] * (2 * 9 + 2)


def test_a_directory_in_bfloat16_says_its_size(model, tmp_path):
    cases.saved(model, tmp_path / "in", "bfloat16")
    (tmp_path / "in" / "README.md").write_text("---\nlicense: mit\n---\n")
    n = sum(p.numel() for p in model.parameters())
    sentence = convert(tmp_path / "in", tmp_path / "run")
    assert sentence.splitlines()[1] == f"{n:,} parameters, {n * 2 / 1e6:,.1f} MB in bfloat16; license: mit"
    assert json.loads((tmp_path / "run" / "config.json").read_text())["task"] == "d"
