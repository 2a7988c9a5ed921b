"""Adapters of low rank, to PEFT and back: its logits are ours, for a Llama and fused matrices of GPT-2 and GPT-NeoX."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from algorithms import DEEPSEEK, d_hidden_state
from algorithms.lines import MLP
from tests import interchange_cases as cases
from tests.run_cases import make_run
from training.data.tokenizers import ByteTokenizer
from training.interchange import InterchangeError, convert
from training.runs.directory import Description, RunDirectory
from training.runs.named_arrays import flatten
from training.runs.trained_model import FROZEN, frozen_fingerprint, load_run
from training.settings import SettingsError
from training.tasks import settings_from, settings_to_json
from training.tasks.low_rank import adapter_shapes

torch, transformers = cases.libraries()
peft = pytest.importorskip("peft", reason="peft is not installed: pip install -e .[compare]")

# peft's own, of what transformers deprecates and of what it assumes by default.
pytestmark = [pytest.mark.filterwarnings(f"ignore::{kind}") for kind in ("FutureWarning", "UserWarning")]

X = np.array([[5, 250, 17, 3, 99, 180, 41]])
SIZES = {"d_e": 24, "H": 4, "d_mlp": 20, "l_max": 19, "dropout": 0.0}
MODELS = {"gpt2": {"variant": "GPT2"}, "llama": {"variant": "LLAMA", "H_kv": 2}}
MODELS["gpt_neox"] = {"variant": "NEOX", "d_e": 32}  # whose queries, keys and values interleave head by head


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """Models, as runs and as checkpoints of transformers'."""
    root = tmp_path_factory.mktemp("bases")
    for kind, values in MODELS.items():
        make_run(root / kind, "d", ByteTokenizer(), **SIZES | values)
        convert(root / kind, root / f"{kind}-theirs", to=kind)
    return root


def adapted_run(path, base, **values):
    """A run with a random adapter, as training leaves it."""
    run, began = load_run(base), RunDirectory(base).description()
    state = settings_to_json(began.settings) | {"start_from": str(base), "lora_rank": 3, **values}
    state = {name: value for name, value in state.items() if name != "lora_alpha"} | {"lora_alpha": 5.0}
    settings = settings_from(state, task="d")
    fingerprints = {**began.fingerprints, FROZEN: frozen_fingerprint(run.theta)}
    files = RunDirectory(path)
    files.note(Description(settings, run.config, (), fingerprints), run.tokenizer)
    rng = np.random.default_rng(0)
    shapes = flatten(adapter_shapes(run.theta, settings))
    leaves = {name: (0.3 * rng.standard_normal(leaf.shape)).astype(np.float32) for name, leaf in shapes.items()}
    files.save_leaves(leaves, files.adapter)
    return path


def our_logits(run):
    hidden = d_hidden_state(jnp.asarray(X[0]), run.theta)
    return cases.column_logits(hidden, run.theta)


def their_model(bases, kind):
    return transformers.AutoModelForCausalLM.from_pretrained(bases / f"{kind}-theirs", dtype=torch.float32).eval()


def their_logits(model):
    with torch.no_grad():
        return model(torch.tensor(X)).logits[0]


@pytest.mark.parametrize("kind", MODELS)
def test_transformers_opens_both_as_one(tmp_path, bases, kind):
    run = adapted_run(tmp_path / "run", bases / kind)
    convert(run, tmp_path / "out", to=kind, merge=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).eval()
    cases.assert_same(our_logits(load_run(run)), their_logits(model), "float32", kind)


PATTERNS = {"rank_pattern": {"down_proj": 2}, "alpha_pattern": {"down_proj": 6, "mlp.down_proj": 3, "o_proj": 2}}
CONFIGS = [
    ("llama", {"r": 2, "lora_alpha": 7, "target_modules": ["q_proj", "v_proj"]}),
    ("llama", {"r": 2, "lora_alpha": 7, "target_modules": "all-linear", "use_rslora": True}),
    ("llama", {"r": 4, "lora_alpha": 4, "target_modules": ["k_proj", "down_proj", "o_proj"], **PATTERNS}),
    ("llama", {"r": 2, "lora_alpha": 7, "target_modules": ["up_proj", "gate_proj"], "layers_to_transform": [1]}),
    ("gpt2", {"r": 2, "lora_alpha": 7, "target_modules": ["c_attn"]}),
    ("gpt2", {"r": 3, "lora_alpha": 1, "target_modules": ["c_attn", "c_proj", "c_fc"]}),
    ("gpt_neox", {"r": 2, "lora_alpha": 7, "target_modules": ["query_key_value", "dense"]}),
]


def their_adapter(path, bases, kind, options):
    """Save an adapter of PEFT's with random numbers; return the model with it."""
    config = peft.LoraConfig(task_type="CAUSAL_LM", fan_in_fan_out=kind == "gpt2", **options)
    model = peft.get_peft_model(their_model(bases, kind), config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    model.save_pretrained(path)
    return model.eval()


@pytest.mark.parametrize(("kind", "options"), CONFIGS)
def test_an_adapter_of_peft_becomes_a_run_and_goes_back(tmp_path, bases, kind, options):
    theirs = their_logits(their_adapter(tmp_path / "theirs", bases, kind, options))
    sentence = convert(tmp_path / "theirs", tmp_path / "run", adapted=bases / kind)
    assert sentence.startswith(f"Converted {tmp_path / 'theirs'} to {tmp_path / 'run'}, which adapts {bases / kind} ")
    cases.assert_same(our_logits(load_run(tmp_path / "run")), theirs, "float32", "in")
    convert(tmp_path / "run", tmp_path / "back", to=kind)
    model = peft.PeftModel.from_pretrained(their_model(bases, kind), tmp_path / "back")
    cases.assert_same(our_logits(load_run(tmp_path / "run")), their_logits(model), "float32", "back")
    if not {"rank_pattern", "layers_to_transform"} & options.keys():
        files = (tmp_path / d / "adapter_model.safetensors" for d in ("theirs", "back"))
        cases.assert_bits(*map(safetensors.numpy.load_file, files))


def test_an_adapter_of_layers_in_two_stacks_goes_out_and_comes_back(tmp_path):
    """DeepSeek's, whose first layer has no experts: each tensor is named by its layer's number."""
    variant = DEEPSEEK.but(
        attention=DEEPSEEK.attention.but(d_c=6, d_r=4, d_q=5),
        mlp=DEEPSEEK.mlp.but(n=4, k=2, groups=1, chosen_groups=1),
        first=(MLP(activation="silu", gated=True, biases=False, d_mlp=12),),
    )
    base = make_run(tmp_path / "base", "d", ByteTokenizer(), **SIZES, L=3, variant=variant.to_json())
    run = adapted_run(tmp_path / "run", base, lora_matrices=("W_o",))
    convert(run, tmp_path / "out", to="deepseek_v3")
    theirs = safetensors.numpy.load_file(tmp_path / "out" / "adapter_model.safetensors")
    ours = safetensors.numpy.load_file(run / "adapter.safetensors")
    for l, (stack, row) in enumerate([(0, 0), (1, 0), (1, 1)]):
        name = f"base_model.model.model.layers.{l}.self_attn.o_proj.lora_B.weight"
        np.testing.assert_array_equal(theirs[name], ours[f"layers.{stack}.attention.W_o.B"][row])
    convert(tmp_path / "out", tmp_path / "back", adapted=base)
    cases.assert_bits(*(flatten(load_run(path).theta) for path in (run, tmp_path / "back")))


LACKS = "needs what this library does not have: "
MATRICES = f"{LACKS}an initialization that changes the adapted matrices (init_lora_weights = "
REFUSED = [  # what PEFT is asked for, what its file says instead, and the message
    ({}, {"peft_type": "IA3"}, "peft_type: expected LORA, got 'IA3'"),
    ({}, {"of_next_year": 3}, "an unknown feature (of_next_year = 3)"),
    ({}, {"lora_alpha": "much"}, "lora_alpha: expected a number of at least 0, got 'much'"),
    ({}, {"lora_alpha": 0}, "lora_alpha: expected a positive number, got 0"),
    ({}, {"alpha_pattern": {"(a+)+$": 3}}, "alpha_pattern: expected names of modules, got '(a+)+$'"),
    ({}, {"alpha_pattern": [1]}, "alpha_pattern: expected an object, got [1]"),
    ({"use_dora": True}, {}, f"{LACKS}DoRA (use_dora = True)"),
    ({"lora_bias": True}, {}, f"{LACKS}biases of adapters (lora_bias = True)"),
    ({"modules_to_save": ["lm_head"]}, {}, f"{LACKS}fully trained modules (modules_to_save = ['lm_head'])"),
    ({"bias": "all"}, {}, f"{LACKS}trained biases (bias = all)"),
    ({"init_lora_weights": "pissa"}, {}, f"{MATRICES}'pissa'"),
    ({"init_lora_weights": "olora"}, {}, f"{MATRICES}'olora'"),
    ({"layer_replication": [(0, 2), (0, 2)]}, {}, f"{LACKS}repeated layers (layer_replication = [[0, 2], [0, 2]])"),
    ({"target_modules": ["embed_tokens"]}, {}, f"{LACKS}lora_embedding_A of model.embed_tokens"),
    ({"target_modules": ["lm_head"]}, {}, f"{LACKS}lora_A.weight of lm_head"),
]


@pytest.mark.parametrize(("options", "values", "message"), REFUSED)
def test_an_adapter_that_needs_more_is_refused(tmp_path, bases, options, values, message):
    their_adapter(tmp_path / "theirs", bases, "llama", {"r": 2, "target_modules": ["q_proj"], **options})
    file = tmp_path / "theirs" / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    with pytest.raises(InterchangeError) as error:
        convert(tmp_path / "theirs", tmp_path / "run", adapted=bases / "llama")
    assert message in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("start", ["orthogonal", "gaussian"])
def test_an_initialization_that_keeps_the_matrices_is_read(tmp_path, bases, start):
    options = {"r": 2, "target_modules": ["q_proj"], "init_lora_weights": start}
    theirs = their_logits(their_adapter(tmp_path / "theirs", bases, "llama", options))
    convert(tmp_path / "theirs", tmp_path / "run", adapted=bases / "llama")
    cases.assert_same(our_logits(load_run(tmp_path / "run")), theirs, "float32", start)


def test_what_is_not_the_adapter_of_the_model_is_refused(tmp_path, bases):
    their_adapter(tmp_path / "theirs", bases, "llama", {"r": 2, "target_modules": ["q_proj"]})

    def refused(source, **options):
        with pytest.raises((InterchangeError, SettingsError)) as error:
            convert(source, tmp_path / "run", **options)
        assert "\n" not in str(error.value)
        assert not (tmp_path / "run").exists()
        return str(error.value)

    assert "expected --from RUN, the model that it adapts, got none" in refused(tmp_path / "theirs")
    assert "name the model that the adapter was trained on" in refused(tmp_path / "theirs", adapted=bases / "gpt2")
    other = make_run(tmp_path / "other", "d", ByteTokenizer(), **{**SIZES, "d_e": 16}, **MODELS["llama"])
    message = refused(tmp_path / "theirs", adapted=other)
    assert "self_attn.q_proj: expected lora_A [r, 16] and lora_B [16, r], got [2, 24] and [24, 2]" in message
    assert "--merge: expected a run with an adapter" in refused(bases / "llama", merge=True)
    assert "--from: expected a PEFT adapter" in refused(bases / "llama", adapted=bases / "gpt2")
    assert "--from: expected the directory of a run" in refused(tmp_path / "theirs", adapted=bases / "gpt2-theirs")
    weights = tmp_path / "theirs" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert f"{weights} is damaged" in refused(tmp_path / "theirs", adapted=bases / "llama")
    weights.unlink()
    assert f"{weights}: No such file" in refused(tmp_path / "theirs", adapted=bases / "llama")
