"""What the tests of `training.interchange` share: models of other libraries, and how ours are compared with them."""

import contextlib
import importlib
import json
import os
import re
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from algorithms import d_hidden_state
from algorithms.lines import Unembedding
from algorithms.ops.linear import logits
from training.generation import translate
from training.interchange import InterchangeError, load_model, load_pretrained, mapping, save_pretrained
from training.interchange.architectures import ARCHITECTURES
from training.interchange.description import Fields, read_json
from training.interchange.encoders_of_decoders import kind_of
from training.runs.named_arrays import flatten

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
STACKED = {"input_linear.weight": "experts.gate_up_proj", "output_linear.weight": "experts.down_proj"}
STACKED |= {"router.layer.weight": "router.weight"}
"""What files of Granite have in ``block_sparse_moe``, and its name in transformers."""
DTYPES = ("float64", "float32")
TOLERANCE = {"float64": 1e-9, "float32": 1e-4, "rounded": 1e-5}
"""Relative to the largest of all logits, or of all gradients of a parameter; rounded: float64 in which transformers
rounds norms and the angles of positions to float32, unless it runs `in_float64`.
"""


def libraries():
    """torch and transformers, or skip."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e .[compare]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transformers = pytest.importorskip("transformers", reason="not installed: pip install -e .[compare]")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    return torch, transformers


@contextlib.contextmanager
def in_float64(torch):
    """What transformers computes in float32 in any model, such as norms and recurrences, is in float64, too.

    Modules that are imported within keep it, so a model is made once before.
    """
    importlib.import_module("safetensors.torch")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(torch.Tensor, "float", torch.Tensor.double)
            for name in ("float32", "float"):
                patch.setattr(torch, name, torch.float64)
            yield
    finally:
        torch.set_default_dtype(default)


def randomized(torch, model, seed=0, deviation=0.3):
    """The model with every parameter, and what routers add, random, so that none can be left out unnoticed."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_scale = parameter.ndim == 1 and name.endswith("weight")
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(float(is_scale) + deviation * noise)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "layer_scalar")):
                buffer.add_(deviation * torch.randn(buffer.shape, generator=generator, dtype=buffer.dtype))
    return model.eval()


def saved(model, path, dtype="float64"):
    """Save a model of transformers' in a dtype, and return the directory and the model."""
    model = getattr(model, {"float64": "double", "float32": "float", "bfloat16": "bfloat16"}[dtype])()
    model.save_pretrained(path)
    return Path(path)


def tensors_of(path):
    return {
        name: a
        for file in sorted(Path(path).glob("*.safetensors"))
        for name, a in safetensors.numpy.load_file(file).items()
    }


def model_of(path):
    """What config.json describes, and the tensors it has."""
    state = read_json(path / "config.json")
    architecture = ARCHITECTURES[kind_of(state)]
    model = architecture.read_config(Fields(path / "config.json", state), list(tensors_of(path)))
    return model, architecture.entries(model, state)


def by_name(path, theta):
    """The leaves of a pytree like theta by the names of the checkpoint's tensors, in its orientation."""
    _, entries = model_of(path)
    found = dict(mapping.write(entries, flatten(theta)))
    return found | {alias: found[entry.name] for entry in entries for alias in entry.aliases}


def assert_same(ours, theirs, dtype, what):
    ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
    assert ours.shape == theirs.shape, what
    worst = np.abs(ours - theirs).max() / max(np.abs(theirs).max(), 1e-12)
    assert worst < TOLERANCE[dtype], f"{what}: {worst}"
    record(os.environ["PYTEST_CURRENT_TEST"].split("::")[-1], what, dtype, worst)
    return worst


def assert_gradients(model, path, gradients, dtype):
    """Compare the gradient of every parameter of a model of PyTorch's, by its name, with ours."""
    ours = with_experts_together(by_name(path, gradients))
    compared = set()
    largest = max(float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None)
    worst = 0.0
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            continue
        found = next((ours[n] for n in (name, name.partition(".")[2]) if n in ours), None)
        assert found is not None, name
        compared.add(name)
        difference = np.abs(np.asarray(found, np.float64).reshape(parameter.shape) - parameter.grad.double().numpy())
        assert difference.max() / largest < TOLERANCE[dtype], f"gradient of {name}: {difference.max() / largest}"
        worst = max(worst, difference.max() / largest)
    assert compared
    record(type(model).__name__, "gradients", dtype, worst)
    return compared


def with_experts_together(tensors):
    """Tensors by name, and those of one expert each also as transformers has them: all in two tensors."""
    found = {name.replace("block_sparse_moe", "mlp"): a for name, a in tensors.items()}
    for name in [name for name in found if name.endswith("self_attn.q_conv1d.weight")]:  # Kimi Linear
        of_layer, each = name.removesuffix("q_conv1d.weight"), [name.replace("q_conv", f"{a}_conv") for a in "qkv"]
        found[f"{of_layer}conv1d.weight"] = np.concatenate([found[one] for one in each])
        forget = ("f_a_proj.weight", "f_b_proj.weight", "dt_bias", "A_log")
        found |= {f"{of_layer}forget_gate.{one}": found[of_layer + one] for one in forget}
    for stored, name in STACKED.items():
        found |= {n.replace(stored, name): a for n, a in tensors.items() if n.endswith(f"block_sparse_moe.{stored}")}
    for name in [name for name in found if name.endswith("q_conv1d.weight")]:  # of OLMo Hybrid
        parts = [found[name.replace("q_conv1d", f"{a}_conv1d")] for a in "qkv"]
        found[name.replace("q_conv1d", "conv1d")] = np.concatenate(parts)
    numbers = [match for match in map(EXPERT.fullmatch, found) if match]
    for module in dict.fromkeys(match[1] for match in numbers):
        parts = {}
        for match in sorted((m for m in numbers if m[1] == module), key=lambda match: int(match[2])):
            name = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(match[3], match[3])
            parts.setdefault(name, []).append(found[match[0]])
        found |= {f"{module}.{name}": np.stack(parts[name]) for name in ("down_proj", "up_proj")}
        if "gate_proj" in parts:
            found[f"{module}.gate_up_proj"] = np.concatenate([parts["gate_proj"], parts["up_proj"]], axis=1)
    return found


def record(model, what, dtype, value):
    """Write a figure for docs/notes/models.md, where RECORD names a file."""
    if os.environ.get("RECORD"):
        with Path(os.environ["RECORD"]).open("a") as file:
            print(model, what, dtype, f"{value:.3g}", sep=" | ", file=file)


def assert_bits(a, b):
    """The same tensors, to the last bit."""
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        assert a[name].shape == b[name].shape, name
        assert a[name].tobytes() == b[name].tobytes(), name


def assert_as_theirs(torch, model, path, theta, outputs, expected, dtype, *, read=None):
    """Our outputs are those of a model of PyTorch's, and so is the gradient of a random linear function of them.

    `outputs`: of theta, tokens before rows; `expected`: of the model; `read`: which tokens are. Returns the names of
    the parameters whose gradients were compared.
    """
    read = np.ones(expected.shape[:-1], bool) if read is None else read
    weights = np.random.default_rng(2).standard_normal(expected.shape) * read[..., None]

    def score(theta):
        Y = outputs(theta)
        return (Y * jnp.asarray(weights, Y.dtype)).sum(), Y

    (_, Y), gradients = jax.jit(jax.value_and_grad(score, has_aux=True))(theta)
    (expected * torch.tensor(weights, dtype=expected.dtype)).sum().backward()
    assert_same(np.asarray(Y)[read], expected.detach().numpy()[read], dtype, "outputs")
    return assert_gradients(model, path, gradients, dtype)


def assert_decodes_as_theirs(torch, model, path, x, dtype):
    """The logits of a checkpoint's decoder are PyTorch's, and so are the gradients of all its parameters."""
    theta, config, tokenizer = load_pretrained(path)
    assert tokenizer is None

    def ours(theta):
        return jnp.moveaxis(config.variant.unembedding.logits(d_hidden_state(jnp.asarray(x), theta), theta), 0, -1)

    with in_float64(torch):
        logits = model.double()(torch.tensor(x)).logits
    compared = assert_as_theirs(torch, model, path, theta, ours, logits, dtype)
    assert len(compared) == sum(parameter.grad is not None for parameter in model.parameters())


def assert_written_again(torch, path, open_model, outputs, *, unwritten=(), tolerance=1e-12, **options):
    """What we read of a checkpoint and write again are its tensors to the last bit, and the same model for PyTorch.

    The outputs only within rounding: PyTorch's kernels add in an order that depends on the processor and on where the
    memory happens to lie.

    `torch`: the library; `open_model`: of a directory; `outputs`: of a model in float64; `unwritten`: tensors that are
    not in a checkpoint of ours; `tolerance`: of the outputs, relative to the largest; `options`: of save_pretrained.
    """
    run, ours = load_model(path), path.with_name("ours")
    save_pretrained(ours, run.theta, run.config, labels=run.labels, **options)
    first = {alias: entry.name for entry in model_of(path)[1] for alias in entry.aliases}
    assert_bits(
        tensors_of(ours), {first.get(name, name): a for name, a in tensors_of(path).items() if name not in unwritten}
    )
    assert load_pretrained(ours)[1] == run.config
    opened, theirs = open_model(ours), open_model(path)
    assert type(opened) is type(theirs)
    assert opened.config.id2label == theirs.config.id2label
    found, expected = opened.state_dict(), theirs.state_dict()
    assert found.keys() == expected.keys()
    for name in expected.keys() - unwritten:
        assert torch.equal(found[name], expected[name]), name
    found, expected = (outputs(model.double()).detach().numpy() for model in (opened, theirs))
    np.testing.assert_allclose(found, expected, atol=tolerance * np.abs(expected).max(), rtol=0)


def assert_greedy(torch, model, path, z, lengths, l_max, **rules):
    """The translations of a batch are those of PyTorch's model, as far as both go."""
    theta, config, _ = load_pretrained(path)
    special = {"bos": model.config.decoder_start_token_id, "eos": model.config.eos_token_id}
    tokens, counts, _ = translate(theta, z, lengths=lengths, config=config, l_max=l_max, **special)
    attended = torch.tensor(np.arange(z.shape[1]) < lengths[:, None]).long()
    options = {"max_length": l_max, "num_beams": 1, "do_sample": False, **rules}
    expected = model.generate(torch.tensor(z), attention_mask=attended, **options).tolist()
    for row, n, theirs in zip(tokens, counts, expected, strict=True):
        both = min(int(n), len(theirs))
        assert row[:both].tolist() == theirs[:both]


def column_logits(X, theta):
    """Logits of columns, [*batch, l, N_V], as other libraries have them."""
    return jnp.moveaxis(logits(X, Unembedding().matrix(theta), getattr(theta, "b_u", None)), 0, -1)


def change_config(path, **fields):
    """Change fields of a checkpoint's config.json; one that is None is left out."""
    file = Path(path) / "config.json"
    state = json.loads(file.read_text("utf-8")) | fields
    file.write_text(json.dumps({name: value for name, value in state.items() if value is not None}), "utf-8")


def assert_refused(model, path, message, **fields):
    """A checkpoint of a model is refused once these fields of its config.json have changed."""
    change_config(saved(model, path), **fields)
    assert_unreadable(path, message)


def assert_unreadable(path, message):
    with pytest.raises(InterchangeError, match=message):
        load_pretrained(path)
