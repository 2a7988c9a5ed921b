"""Run directories: what is written is read back, and what is not as it was is said."""

import dataclasses
import json
import os

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors

from tests import cases
from tests.run_cases import files_end_at
from tests.training_cases import N_V, TOKEN_TASKS, data_for, settings_for
from training.data.tokenizers import ByteTokenizer
from training.foreign.making import make_case, write_case
from training.runs.checkpoints import Checkpoints
from training.runs.directory import Description, RunDirectory, RunError
from training.runs.resuming import differences
from training.runs.trained_model import load_run
from training.settings import SettingsError
from training.tasks import TASKS, settings_from, settings_to_json
from training.tasks.models import model_config, model_shapes


def begin(directory, task="d", **values):
    settings = settings_for(task, **values)
    data = data_for(settings)
    description = Description(settings, model_config(settings, N_V), data.labels, data.fingerprints)
    files = RunDirectory(directory)
    files.note(description, data.tokenizer)
    template = model_shapes(task, description.config, N_C=len(data.labels))
    return files, description, cases.random_like(template, dtype=jnp.float32)


@pytest.mark.parametrize("task", TOKEN_TASKS)
def test_a_complete_run_is_read_back(tmp_path, task):
    files, description, theta = begin(tmp_path / "run", task, variant="BERT" if task == "e" else "PAPER", dropout=0.25)
    files.save_parameters(theta)
    run = load_run(tmp_path / "run")
    assert ((run.task, run.config), run.tokenizer.encode("abc")) == ((task, description.config), [0, 1, 2])
    chex.assert_trees_all_equal(run.theta, theta)
    assert files.description() == description
    assert description.settings.dropout == 0.25
    without = dataclasses.replace(description.settings, dropout=0.0)
    assert run.config == model_config(without, N_V)  # a trained model is used without dropout


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_converted_model_keeps_its_type(tmp_path, dtype):
    files, _, theta = begin(tmp_path / "run")
    files.save_parameters(jax.tree.map(lambda a: np.asarray(a.astype(dtype)), theta))
    assert {leaf.dtype.name for leaf in jax.tree.leaves(load_run(files.path).theta)} == {dtype}


def full_disk(*_, **__):
    raise safetensors.SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("full", [True, False])
def test_a_full_disk_leaves_the_parameters_as_they_were(tmp_path, monkeypatch, full):
    files, _, theta = begin(tmp_path / "run")
    files.save_parameters(theta)
    before = files.parameters.read_bytes()
    if full:
        monkeypatch.setattr("safetensors.numpy.save_file", full_disk)
    says = "No space left on device" if full else "File too large"
    with pytest.raises(OSError, match=says), files_end_at(1 << 20 if full else 1000):
        files.save_parameters(jax.tree.map(jnp.negative, theta))
    assert files.parameters.read_bytes() == before
    assert not list(files.path.glob("*.unfinished"))


@pytest.mark.parametrize("umask", [0o022, 0o027])
def test_files_of_a_run_have_the_same_permissions(tmp_path, umask):
    before = os.umask(umask)
    try:
        files, _, theta = begin(tmp_path / "run")
        files.save_parameters(theta)
        files.save_results({"loss": 1.0})
        with Checkpoints(files.checkpoints, max_to_keep=1) as checkpoints:
            checkpoints.save(1, {"params": theta}, {})
        write_case(make_case(7), files.path / "case")
    finally:
        os.umask(before)
    written = [path for path in files.path.rglob("*") if path.is_file()]
    assert sum(path.suffix == ".safetensors" for path in written) >= 2
    assert {path: oct(path.stat().st_mode & 0o777) for path in written} == dict.fromkeys(written, oct(0o666 & ~umask))


@pytest.mark.parametrize("name", ["metrics.jsonl", "loss.png"])
def test_a_link_that_would_be_written_through_is_refused(tmp_path, name):
    files, _, _ = begin(tmp_path / "run")
    (tmp_path / "outside").write_text("mine")
    (files.path / name).symlink_to(tmp_path / "outside")
    with pytest.raises(RunError, match=f"{name}: expected a file, got a symbolic link; delete it, or name another"):
        files.exists()


def test_a_file_beside_that_is_a_link_is_not_written_through(tmp_path):
    files, _, _ = begin(tmp_path / "run")
    (tmp_path / "outside").write_text("mine")
    (files.path / "results.json.unfinished").symlink_to(tmp_path / "outside")
    files.save_results({"loss": 1.0})
    assert (tmp_path / "outside").read_text() == "mine"
    assert json.loads(files.results.read_text()) == {"loss": 1.0}
    assert not files.results.is_symlink()


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "metrics.jsonl", "parameters.safetensors"])
@pytest.mark.parametrize("kind", ["a pipe", "a directory"])
def test_what_is_not_a_file_is_refused(tmp_path, name, kind):
    files, _, _ = begin(tmp_path / "run")
    (files.path / name).unlink(missing_ok=True)
    os.mkfifo(files.path / name) if kind == "a pipe" else (files.path / name).mkdir()
    for act in (files.exists, lambda: load_run(files.path)):
        with pytest.raises(RunError, match=f"{name}: expected a file, got {kind}"):
            act()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_an_unfinished_run_gives_its_last_sound_checkpoint(tmp_path, ema_decay):
    files, _, theta = begin(tmp_path / "run", ema_decay=ema_decay)
    with Checkpoints(files.checkpoints, max_to_keep=3) as checkpoints:
        for step in (1, 2):
            params = jax.tree.map(lambda a, step=step: a * step, theta)
            checkpoints.save(step, {"params": params, "ema": jax.tree.map(jnp.negative, params)}, {})
    sign = -1 if ema_decay else 1
    np.testing.assert_array_equal(load_run(files.path).theta.W_e, 2 * sign * theta.W_e)
    item = files.checkpoints / "2" / ("ema" if ema_decay else "params")
    largest = max((p for p in item.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-1])
    with pytest.warns(UserWarning, match="the checkpoint of step 2 is damaged"):
        run = load_run(files.path)
    np.testing.assert_array_equal(run.theta.W_e, sign * theta.W_e)


def test_a_run_that_was_killed_before_its_first_checkpoint_has_none(tmp_path):
    files, _, theta = begin(tmp_path / "run")
    with Checkpoints(files.checkpoints, max_to_keep=1):
        pass
    with pytest.raises(RunError, match=r"the run in .* has no checkpoint yet"):
        load_run(files.path)
    with Checkpoints(files.checkpoints, max_to_keep=1) as checkpoints:
        checkpoints.save(1, {"params": theta}, {})
    aside = files.path / "checkpoints-damaged"
    aside.mkdir()
    (files.checkpoints / "1").rename(aside / "1-1")
    with pytest.raises(RunError, match=r"has only damaged checkpoints, set aside in .*checkpoints-damaged"):
        load_run(files.path)


def test_equal_parameters_are_equal_files(tmp_path):
    files, _, theta = begin(tmp_path / "run")
    found = set()
    for _ in range(12):  # safetensors orders two keys either way
        files.save_parameters(theta, step=7)
        found.add(files.parameters.read_bytes())
    assert len(found) == 1
    with safetensors.safe_open(files.parameters, framework="numpy") as file:
        assert file.metadata()["step"] == "7"
    np.testing.assert_array_equal(load_run(files.path).theta.W_e, theta.W_e)


def test_what_is_no_run_is_said(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    begin(tmp_path / "begun")
    for act, name, message in (
        (load_run, "none", "there is no run directory"),
        (load_run, "other", r"is not a run directory: cannot read .*config.json"),
        (load_run, "begun", "has no checkpoint yet"),
        (lambda path: RunDirectory(path).exists(), "other", r"is not empty, but it has no config\.json"),
        (lambda path: RunDirectory(path).exists(), "other/notes.txt", "expected a directory, got a file; name another"),
    ):
        with pytest.raises(RunError, match=message):
            act(tmp_path / name)


@pytest.mark.parametrize(("place", "how"), [(-5, "wrong checksum of"), (0.5, "wrong checksum of"), (None, "")])
def test_damaged_parameters_are_not_used(tmp_path, place, how):
    files, _, theta = begin(tmp_path / "run")
    files.save_parameters(theta)
    data = bytearray(files.parameters.read_bytes())
    if place is None:
        del data[-7:]
    else:
        data[int(place * len(data)) if place > 0 else place] ^= 16
    files.parameters.write_bytes(data)
    with pytest.raises(RunError, match=rf"parameters\.safetensors is damaged.*{how}"):
        load_run(files.path)


def without_fingerprint(text):
    state = json.loads(text)
    del state["fingerprints"]["tokenizer"]
    return json.dumps(state)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda text: text[:-9], "config.json cannot be read: "),
        (lambda text: text.replace('"d_e": 8', '"d_e": "8"'), "config.json cannot be read: "),
        (lambda text: text.replace("run 4", "run 3"), "config.json cannot be read: "),
        (lambda _: "[]", "config.json cannot be read: "),
        (lambda _: "[" * 200_000, "config.json cannot be read: nested too deeply"),
        (lambda text: text.replace('"record": "Variant"', '"record": "Variant", "dropout": 0.2'), "read: .*dropout"),
        (without_fingerprint, "fingerprints: expected one of the tokenizer, got none"),
        (None, "is not the tokenizer that the run began with"),
    ],
)
def test_a_description_that_is_damaged_or_of_another_run_is_said(tmp_path, change, says):
    files, _, theta = begin(tmp_path / "run", variant="LLAMA")
    files.save_parameters(theta)
    if change is None:
        ByteTokenizer().save(files.tokenizer)
    else:
        before = files.config.read_text()
        files.config.write_text(change(before))
        assert files.config.read_text() != before
    with pytest.raises(RunError, match=says):
        load_run(files.path)


def test_a_run_goes_on_with_the_same_settings_and_data_only(tmp_path):
    files, description, _ = begin(tmp_path / "run")
    files.check_continues(description)
    harmless = dataclasses.replace(description.settings, max_to_keep=7, checkpoint_every=3)
    files.check_continues(description._replace(settings=harmless))
    other = dataclasses.replace(description.settings, learning_rate=0.5, batch_size=8)
    message = r"began with other settings \(--batch-size: 4, now 8; --learning-rate: 0.004, now 0.5\)"
    with pytest.raises(RunError, match=message):
        files.check_continues(description._replace(settings=other))
    for what in description.fingerprints:
        changed = description.fingerprints | {what: "other"}
        with pytest.raises(RunError, match=f"began with another {what}"):
            files.check_continues(description._replace(fingerprints=changed))
    with pytest.raises(RunError, match="task: d, now e"):
        files.check_continues(description._replace(settings=settings_for("e")))


def test_data_that_moved_are_the_same(tmp_path):
    """Their hashes say so; config.json then has their new place, whose name need not be UTF-8."""
    files, description, _ = begin(tmp_path / "run")
    moved = dataclasses.replace(description.settings, data=(os.fsdecode(b"/new/\xe9.txt"),), validation_data=("b",))
    files.resume(description._replace(settings=moved))
    assert files.description().settings == moved
    with pytest.raises(RunError, match=r"settings \(--seed: 0, now 5\): leave"):
        files.check_continues(description._replace(settings=dataclasses.replace(moved, seed=5)))


def test_changed_settings_are_named_as_they_are_typed_and_without_what_follows_from_them(tmp_path):
    files, description, _ = begin(tmp_path / "run")
    began = description.settings
    other = dataclasses.replace(began, start_from="gpt2", learning_rate=1e-4, data=("a", "b"))
    data = " ".join(began.data)
    of_other_data = description._replace(settings=other, fingerprints=description.fingerprints | {"training data": "b"})
    with pytest.raises(RunError, match=rf"settings \(--data: {data}, now a b; --from: none, now gpt2\): leave"):
        files.check_continues(of_other_data)
    adapter = dataclasses.replace(other, lora_rank=2, lora_alpha=4.0)
    with pytest.raises(
        RunError, match=r"--run: expected a new directory for the adapter, got .*run, a run without --lora-"
    ):
        files.check_continues(description._replace(settings=adapter))


def test_the_command_that_began_resumes_what_took_more_parts(tmp_path):
    """It may name a number of parts, as presets do, and not the one that scarce memory made of it."""
    files, description, _ = begin(tmp_path / "run", accumulation_steps=1)
    files.note(description._replace(settings=dataclasses.replace(description.settings, accumulation_steps=2)))
    files.resume(description)
    assert files.description() == description


def test_what_changes_no_number_may_be_changed_on_the_way(tmp_path):
    files, description, _ = begin(tmp_path / "run", steps=20)
    more = description._replace(settings=dataclasses.replace(description.settings, eval_every=7, log_every=2))
    files.resume(more)
    assert files.description() == more
    with pytest.raises(RunError, match="--steps: 20, now 40"):  # cosine: the rates so far would be others
        files.resume(more._replace(settings=dataclasses.replace(more.settings, steps=40)))


@pytest.mark.parametrize(
    ("schedule", "old", "new", "done", "may"),
    [
        ("constant", 20, 40, 20, True),
        ("constant", 20, 10, 15, False),
        ("vaswani", 20, 40, 20, True),
        ("linear", 20, 40, 5, False),
        ("wsd", 20, 40, 16, True),  # the last fifth of 20 begins behind it
        ("wsd", 20, 40, 17, False),
        ("wsd", 40, 20, 17, False),
    ],
)
def test_more_steps_where_the_schedule_has_not_looked_at_them(schedule, old, new, done, may):
    began = settings_for("d", schedule=schedule, optimizer="adam", warmup=2, steps=old)
    assert bool(differences(began, dataclasses.replace(began, steps=new), done=done)) != may


@pytest.mark.parametrize("task", TASKS)
def test_settings_are_read_back_from_json(task):
    settings = settings_for(task, seed=3)
    assert settings_from(json.loads(json.dumps(settings_to_json(settings))), task=task) == settings


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"layers": 3}, "layers: expected a setting of d, got an unknown one; it has data, "),
        ({"L": 1.5}, "--L: expected an integer, got 1.5"),
        ({"L": True}, "--L: expected an integer, got True"),
        ({"tied": 1}, "--tied: expected true or false, got 1"),
        ({"learning_rate": "fast"}, "--learning-rate: expected a number, got 'fast'"),
        ({"data": "docs"}, "--data: expected a list of strings, got 'docs'"),
        ({"rows": "random"}, "--rows: expected one of chunks, windows, packed, got 'random'"),
        ({"dropout": 1.0}, "--dropout: expected at least 0 and less than 1, got 1.0"),
        ({"learning_rate": 0}, "--learning-rate: expected a positive number, got 0.0"),
        ({"learning_rate": float("nan")}, "--learning-rate: expected a positive number, got nan"),
        ({"dropout": float("nan")}, "--dropout: expected at least 0 and less than 1, got nan"),
        ({"batch_size": 6, "accumulation_steps": 4}, "--batch-size: expected a multiple of --accumulation-steps, 4"),
        ({"warmup": 21, "steps": 20}, "--warmup: expected at most --steps, 20, got 21"),
        ({"optimizer": "sophia"}, "--optimizer: expected one of sgd, adam, adamw, lion, adafactor, muon, got 'sophia'"),
        ({"optimizer": "sgd", "weight_decay": 0.1}, "expected 0 for sgd, got 0.1; or choose one of adamw, lion, muon"),
        ({"lora_rank": 2}, "--lora-rank: expected --from RUN, the model to adapt, got none"),
        ({"start_from": "x", "lora_rank": -1}, "--lora-rank: expected at least 0"),
        ({"start_from": "x", "lora_alpha": 1.0}, "--lora-alpha: expected --lora-rank with it, got none"),
        ({"lora_matrices": ["W_q"]}, "--lora-matrices: expected --lora-rank with it, got none"),
    ],
)
def test_settings_that_cannot_be_are_said(values, message):
    with pytest.raises(SettingsError) as error:
        settings_from(values, task="d")
    assert message in str(error.value)
