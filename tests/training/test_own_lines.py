"""A model with custom lines is trained, resumed, saved, loaded, converted and used as any other."""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from algorithms import LLAMA, DTransformerConfig, d_transformer, init_d_transformer
from tests.own_lines.experts import EXPERTS, Experts
from tests.own_lines.latent import LATENT
from tests.own_lines.retention import HYBRID, Retention
from tests.own_lines.sinks import SINKS
from tests.training_cases import make_trainer, settings_for
from training import commands
from training.interchange import InterchangeError, convert, load_pretrained, save_pretrained
from training.mesh.placement import Placement
from training.runs.directory import RunDirectory, RunError
from training.runs.named_arrays import flatten
from training.runs.trained_model import load_run
from training.settings import SettingsError
from training.tasks import settings_from
from training.tasks.models import config_from_json, config_to_json, model_config
from training.tasks.own_lines import setting_of, variant_named

OWN = {"EXPERTS": "experts", "SINKS": "sinks", "DIFFERENTIAL": "differential", "LATENT": "latent"}
OWN |= {"HYBRID": "retention"}
PATHS = {name: f"tests.own_lines.{module}:{name}" for name, module in OWN.items()}
SIZES: dict[str, Any] = {"N_V": 24, "l_max": 8, "L": 2, "H": 4, "d_e": 16, "d_mlp": 32}
FLAGS: dict[str, Any] = {"l_max": 16, "L": 2, "H": 2, "d_e": 8, "d_mlp": 8, "tokenizer": "bytes", "batch-size": 4}
FLAGS |= {"eval-batches": 2, "optimizer": "adamw", "peak": 1e12, "schedule": "constant", "no-tensorboard": None}
TEXT = "".join(f"The {n}th paragraph says that {n} and {n + 1} are {2 * n + 1}.\n\n" for n in range(400))


def flags(**more):
    given = [(f"--{name}", value) for name, value in {**FLAGS, **more}.items()]
    return [str(word) for pair in given for word in pair if word is not None]


@pytest.fixture
def train(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)

    def run(name, *arguments, **more):
        where = ["--run", str(tmp_path / name), "--cache", str(tmp_path / "cache"), "--data", str(text), "--quiet"]
        with jax.enable_x64(False):
            assert commands.train_main(["d", *where, *flags(**more), *arguments]) == 0
        return tmp_path / name

    return run


@pytest.mark.end_to_end
@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OWN)
def test_two_steps_and_two_more_are_four(train, capsys, name):
    """And what a command generates from the run is what its text says."""
    whole = train("whole", variant=PATHS[name], L=3, steps=4)
    parts = train("parts", variant=PATHS[name], L=3, steps=2)
    before = flatten(load_run(parts).theta)
    with jax.enable_x64(False):
        assert commands.train_main(["--run", str(parts), "--steps", "4", "--quiet"]) == 0
    run, other = load_run(parts), load_run(whole)
    assert run.config.variant == variant_named(PATHS[name])
    for leaf, array in flatten(run.theta).items():
        np.testing.assert_array_equal(array, flatten(other.theta)[leaf])
        assert np.any(np.asarray(array) != before[leaf]), leaf
    capsys.readouterr()
    for command in (["--prompt", "The 7th"], ["--prompt", "The 7th", "--dtype", "bfloat16"]):
        assert commands.generate_main([str(parts), *command]) == 0
    assert capsys.readouterr().out.strip()


@pytest.mark.end_to_end
def test_a_records_json_in_a_file_of_settings(train, tmp_path):
    file = tmp_path / "settings.json"
    mine = EXPERTS.but(mlp=Experts(n=3, k=1, activation="silu"), attention=SINKS.attention)
    file.write_text(json.dumps({"variant": mine.to_json(), "steps": 1}))
    run = train("run", "--config", str(file))
    assert load_run(run).config.variant == mine
    assert json.loads(run.joinpath("config.json").read_text())["model"]["variant"] == mine.to_json()
    with jax.enable_x64(False):  # the same file again resumes
        assert commands.train_main(["d", "--run", str(run), "--config", str(file), "--quiet"]) == 0
        page = ["--prompt", "The 7th", "--out", str(tmp_path / "page")]
        assert commands.look_inside_main([str(run), *page]) == 0


def test_settings_name_variants():
    for name, path in PATHS.items():
        settings = settings_from({"variant": path, "H": 4, "d_e": 16}, task="d")
        assert model_config(settings, 24, ["tests.own_lines"]).variant == variant_named(path)
        assert variant_named(setting_of(variant_named(path))) == variant_named(path), name
    assert setting_of(LLAMA) == "LLAMA"
    as_json = settings_from({"variant": SINKS.to_json()}, task="d")
    assert model_config(as_json, 24).variant == SINKS


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("LAMA", "--variant: expected one of PAPER, .*, or PACKAGE.MODULE:NAME, got 'LAMA'"),
        ("no_such_package.lines:MINE", "no_such_package.lines: expected a module with the lines of this model, got no"),
        ("tests.own_lines.none:MINE", "tests.own_lines.none: expected a module .*; install its package, or name its f"),
        ("tests.own_lines.sinks:Sinks", r"--variant: expected a Variant at tests.own_lines.sinks:Sinks, such as LLAMA"),
        ("tests.own_lines.sinks:NONE", r"--variant: expected a Variant at tests.own_lines.sinks:NONE"),
        ('{"record": "Rotary"}', "--variant: expected a Variant at this JSON, .* got Rotary"),
        ('{"record": "Variant"', "--variant: expected the JSON of a record, got"),
        ('{"record": "os:path"}', "record: expected one of .*, got"),
    ],
)
def test_variants_that_are_none(variant, message):
    with pytest.raises((SettingsError, ValueError), match=message):
        model_config(settings_from({"variant": variant}, task="d"), 24, ["no_such_package", "tests.own_lines"])


def test_a_module_that_cannot_be_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "damaged_lines.py").write_text("import no_such_library")
    (tmp_path / "wrong_lines.py").write_text("def (")
    with pytest.raises(ValueError, match="damaged_lines: cannot be imported: No module named 'no_such_library'; inst"):
        variant_named("damaged_lines:MINE", ["damaged_lines"])
    with pytest.raises(ValueError, match="wrong_lines: cannot be imported: SyntaxError"):
        variant_named("wrong_lines:MINE", ["wrong_lines"])
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path != str(tmp_path)])


MODULE = """
import dataclasses
from algorithms import LLAMA
from algorithms.lines import MLP

@dataclasses.dataclass(frozen=True, kw_only=True)
class Twice(MLP):
    times: float = 2.0

    def __call__(self, X, W, **options):
        Y = self.times * super().__call__(X, W, **options)  # inside
        return Y

TWICE = LLAMA.but(mlp=Twice(activation="silu", gated=True, biases=False))
"""


def test_a_run_remembers_its_package(tmp_path, monkeypatch):
    """A package in the working directory is found, and one that is gone is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "study_of_mine.py").write_text(MODULE)
    config = DTransformerConfig(**SIZES, variant=variant_named("study_of_mine:TWICE", ["study_of_mine"]))
    written = json.loads(json.dumps(config_to_json(config)))
    assert written["variant"]["mlp"]["record"] == "study_of_mine:Twice"
    assert config_from_json("d", written) == config
    gone = json.loads(json.dumps(written).replace("study_of_mine", "study_of_yours"))
    with pytest.raises(ValueError, match="study_of_yours: expected a module with the lines of this model, got none"):
        config_from_json("d", gone, ["study_of_yours"])


@pytest.mark.end_to_end
def test_a_run_is_not_resumed_with_other_lines(tmp_path):
    trainer, _ = make_trainer(tmp_path / "run", settings_for("d", variant=PATHS["EXPERTS"], steps=1, H=2))
    trainer.train()
    files = RunDirectory(tmp_path / "run")
    began = files.description()
    other = EXPERTS.but(mlp=Experts(n=4, k=1, activation="silu"))
    sizes = {name: getattr(began.config, name) for name in SIZES}
    changed = DTransformerConfig(**sizes, variant=other)
    with pytest.raises(RunError, match=r"began with another variant, .*n=4\)\), now .*k=1\)\): restore its lines"):
        files.check_continues(began._replace(config=changed))


@pytest.fixture(scope="module")
def thetas():
    variants = {"EXPERTS": EXPERTS, "SINKS": SINKS, "LATENT": LATENT}
    variants["HYBRID"] = HYBRID.but(attention=(*2 * [Retention(n_sums=8)], HYBRID.attentions[2]))
    sizes = {name: {**SIZES, "L": 3 if name == "HYBRID" else 2} for name in variants}
    configs = {name: DTransformerConfig(**sizes[name], variant=variant) for name, variant in variants.items()}
    return {name: (config, init_d_transformer(jax.random.key(0), config)) for name, config in configs.items()}


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", ["EXPERTS", "SINKS", "LATENT", "HYBRID"])
def test_files_of_ones_own(tmp_path, thetas, name):
    config, theta = thetas[name]
    kind = OWN[name].title()
    with pytest.raises(InterchangeError, match=rf"do not have its lines, .*{kind}\(.*; give --to run"):
        save_pretrained(tmp_path / "theirs", theta, config)
    assert not (tmp_path / "theirs").exists()
    save_pretrained(tmp_path / "mine", theta, config, to="run")
    again, found, tokenizer = load_pretrained(tmp_path / "mine")
    assert (found, tokenizer) == (config, None)
    assert jax.tree.structure(again) == jax.tree.structure(theta)
    jax.tree.map(np.testing.assert_array_equal, again, theta)
    assert "run" in convert(tmp_path / "mine", tmp_path / "narrow", to="run", dtype=jnp.bfloat16)
    assert load_pretrained(tmp_path / "narrow")[0].W_e.dtype == jnp.bfloat16


@pytest.mark.end_to_end
def test_axes_are_divided(thetas):
    rows, both, output = P(None, "model", None, "data"), P(None, "model", "data"), P(None, "data", "model")
    expected = {
        "EXPERTS": {"mlp.W_r": both, "mlp.experts.W_mlp1": rows, "attention.heads.W_q": rows},
        "SINKS": {"attention.s": P(None, "model"), "mlp.W_mlp1": both},
        "LATENT": {"attention.W_k": rows, "attention.W_c": P(None, None, "data"), "attention.W_o": output},
        "HYBRID": {"0.attention.W_v": both, "0.attention.W_o": output, "1.attention.heads.W_q": rows},
    }
    for name, (_, theta) in thetas.items():
        placed = flatten(Placement("data=4,model=2").placed(theta))
        assert {k: placed[f"layers.{k}"].sharding.spec for k in expected[name]} == expected[name]


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", ["EXPERTS", "SINKS", "LATENT", "HYBRID"])
def test_a_mesh_computes_the_same(thetas, name):
    _, theta = thetas[name]
    x = np.random.default_rng(0).integers(0, 21, (8, 8))
    placement = Placement("data=2,context=2,model=2")
    there = jax.device_put(theta, jax.tree.map(lambda leaf: leaf.sharding, placement.placed(theta)))

    def loss(theta, x):
        return -jnp.log(d_transformer(x, theta)[0]).sum()

    value, gradient = jax.value_and_grad(loss)(theta, x)
    with placement.in_use():
        found, of_mesh = jax.jit(jax.value_and_grad(loss))(there, jax.device_put(x, placement.of_batch))
    np.testing.assert_allclose(found, value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4), of_mesh, gradient)


def test_the_document_shows_the_examples():
    """docs/research.md has one of them whole, and each is as short as it says."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs" / "research.md").read_text("utf-8")
    for name, module in OWN.items():
        text = (root / "tests" / "own_lines" / f"{module}.py").read_text("utf-8")
        assert sum(bool(line.strip()) for line in text.splitlines()) <= 45, name
        assert (f"```python\n{text}```" in page) == (name == "SINKS")
        assert f"tests/own_lines/{module}.py" in page
