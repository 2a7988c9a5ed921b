"""generate.py --steer: a saved direction is added to every token that is read."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from algorithms import d_inference
from algorithms.inside import at, intervene
from tests.run_cases import make_run
from training.interpretability.steering import FORMAT, save_direction
from training.runs.trained_model import load_run

pytestmark = pytest.mark.usefixtures("x32")
DIRECTION = np.random.default_rng(1).standard_normal(8).astype(np.float32)
WRITTEN = {"format": FORMAT, "where": json.dumps({"name": "X@8", "layer": 0})}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("steered") / "d", "d")


def test_it_is_steered_algorithm_14(run, tmp_path, printed):
    generated = functools.partial(printed, "generate", run, "--tau", 0, "--l_gen", 12, "--prompt", "bad ")
    model = load_run(run)
    add, head = tmp_path / "add.safetensors", tmp_path / "with:colon"
    save_direction(add, at("X@8", layer=0), DIRECTION)
    save_direction(head, at("Y@2", layer=1, head=1), DIRECTION[:4])
    changes = {
        at("X@8", layer=0): lambda X: X - 60 * DIRECTION.reshape(8, *(1,) * (X.ndim - 1)),
        at("Y@2", layer=1, head=1): lambda Y: Y + DIRECTION[:4].reshape(4, *(1,) * (Y.ndim - 1)),
    }
    x = jnp.asarray(model.tokenizer.framed(model.tokenizer.encode("bad "), ends=False))
    options = {"l_gen": 12, "tau": 0.0, "key": jax.random.key(0)}
    tokens = intervene(d_inference, changes)(x, model.theta, **options).tolist()
    tokens = tokens[: tokens.index(model.tokenizer.end)] if model.tokenizer.end in tokens else tokens
    found = generated("--steer", f"{add}:-60", "--steer", head)
    assert found == model.tokenizer.decode(tokens) + "\n"
    assert found != generated()
    several = generated("--steer", f"{add}:-60", "--steer", head, "--json")
    assert json.loads(several)["answers"][0]["text"] == found[:-1]
    assert generated("--steer", f"{add}:-20", "--steer", f"{add}:-40", "--steer", head) == found


def named(**where):
    """A file with the direction, of another place."""
    return {"direction": DIRECTION}, {**WRITTEN, "where": json.dumps(where)}


@pytest.mark.parametrize(
    ("tensors", "metadata", "scale", "says"),
    [
        (None, None, "", "--steer: {file}: there is no such file"),
        (None, None, ":much", "--steer: {file}:much: expected FILE or FILE:SCALE with a finite number, got 'much'"),
        (b"abc", None, ":2", "--steer: {file}: expected a direction, as save_direction writes it, got "),
        ({"X@8": DIRECTION}, None, "", "{file}: expected a direction, as save_direction writes it, got other"),
        ({"direction": DIRECTION * np.inf}, WRITTEN, "", "{file}: expected finite numbers"),
        ({"direction": DIRECTION[:5]}, WRITTEN, "", "{file}: expected a direction [8] for this model, got [5]"),
        (*named(name="X@8", layer=2), "", "--steer: X@8[layer=2]: expected a layer from 0 to 1, got 2"),
        (*named(name="Z@8"), "", "--steer: Z@8: expected one of e, "),
    ],
)
def test_what_is_no_direction_is_one_sentence(run, tmp_path, called, tensors, metadata, scale, says):
    file = tmp_path / "file.safetensors"
    if isinstance(tensors, bytes):
        file.write_bytes(tensors)
    elif tensors is not None:
        save_file({name: np.asarray(value) for name, value in tensors.items()}, file, metadata)
    status, out, error = called("generate", run, "--prompt", "a", "--steer", f"{file}{scale}")
    assert (status, out, error.count("\n")) == (2, "", 1)
    assert says.format(file=file) in error


def test_only_what_continues_text_is_steered(tmp_path, called):
    save_direction(tmp_path / "a", at("X@8", layer=0), DIRECTION)
    run = make_run(tmp_path / "e", "e")
    status, _, error = called("generate", run, "--prompt", "a[MASK]", "--steer", tmp_path / "a")
    assert (status, "--steer does not apply: the run is an encoder" in error) == (2, True)
