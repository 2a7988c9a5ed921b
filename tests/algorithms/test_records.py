"""Records with names of their own: a class of a user's never stands in for one of ours in a file, nor the reverse."""

import dataclasses
import json

import pytest

from algorithms import GPT2, PAPER, DTransformerConfig, lines
from algorithms.machinery.record import Record
from training.tasks.models import config_from_json, config_to_json

SIZES = {"N_V": 7, "l_max": 5, "L": 2, "H": 2, "d_e": 6, "d_mlp": 11}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MLP(lines.MLP):
    """A class of a user's, with the name of one of ours."""


def read_again(variant):
    written = json.loads(json.dumps(config_to_json(DTransformerConfig(**SIZES, variant=variant))))
    return config_from_json("d", written).variant


def test_a_class_of_the_same_name_changes_no_run_of_ours():
    assert type(read_again(GPT2).mlp) is lines.MLP
    assert type(Record.from_json({"record": "MLP"})) is lines.MLP


def test_a_class_of_a_user_is_read_as_itself():
    mine = PAPER.but(mlp=MLP(biases=False))
    assert read_again(mine) == mine != PAPER.but(mlp=lines.MLP(biases=False))
    assert type(read_again(mine).mlp) is MLP


def subclass(module):
    kind = type("Study", (lines.MLP,), {"__module__": module, "__qualname__": "Study"})
    return dataclasses.dataclass(frozen=True, kw_only=True)(kind)


@pytest.fixture
def no_other_classes(monkeypatch):
    monkeypatch.setattr(Record, "_kinds", dict(Record._kinds))


@pytest.mark.usefixtures("no_other_classes")
def test_files_without_modules_or_of_a_script_mean_the_only_class_of_this_name():
    first = subclass("first")
    for name in ("Study", "__main__:Study", "first:Study"):
        assert type(Record.from_json({"record": name, "biases": False})) is first
    second = subclass("second")
    assert type(Record.from_json({"record": "second:Study"})) is second
    assert type(Record.from_json({"record": "first:Study"})) is first
    for name in ("Study", "__main__:Study", "third:Study"):
        with pytest.raises(ValueError, match=r"expected one of .*first:Study.*import the module of a custom class"):
            Record.from_json({"record": name})


@pytest.mark.usefixtures("no_other_classes")
def test_a_class_that_is_defined_again_is_the_last_one():
    subclass("cell")
    again = subclass("cell")
    assert type(Record.from_json(again().to_json())) is again
