"""The list of wrong edits still fits the code; `python -m tests.mutations` tries whether the tests catch them."""

import dataclasses
import pathlib
import re
import subprocess
import sys

import pytest

from tests import mutations
from tests.mutations import runner

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_the_code_to_replace_stands_there_once(name):
    mutation = mutations.MUTATIONS[name]
    text = (ROOT / mutation.file).read_text("utf-8")
    edited = mutations.edited(mutation, ROOT)
    assert edited != text
    compile(edited, mutation.file, "exec")
    for test in mutation.tests:
        file, _, function = test.partition("[")[0].partition("::")
        assert not function or re.search(rf"^(def|class) {function}\b", (ROOT / file).read_text("utf-8"), re.MULTILINE)


def test_no_two_mutations_are_the_same_and_every_algorithm_has_one_that_is_located():
    edits = {(m.file, m.function, m.statement, m.old, m.new) for m in mutations.MUTATIONS.values()}
    assert len(edits) == len(mutations.MUTATIONS) >= 171
    located = [m for m in mutations.MUTATIONS.values() if m.line is not None]
    assert len(located) >= 100
    assert {m.algorithm for m in located} == set(range(1, 16))


@pytest.mark.slow
def test_there_are_all_tests_that_mutations_name():
    named = sorted({test for mutation in mutations.MUTATIONS.values() for test in mutation.tests})
    chosen = ["-m", "not slow"]  # as the runner has it
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *chosen, "-p", "no:cacheprovider", *named]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    assert [test for test in named if not any(line.startswith(test) for line in collected)] == []


@pytest.mark.slow
def test_a_mutation_is_caught_and_a_change_of_nothing_is_not(monkeypatch, capsys):
    caught = mutations.MUTATIONS["token off by one"]
    harmless = dataclasses.replace(caught, new="W_e[:, 0 + v]")
    monkeypatch.setitem(mutations.MUTATIONS, "harmless", harmless)
    assert runner.main(["token off by one", "harmless"]) == 1
    printed = capsys.readouterr().out
    assert "token off by one: algorithms/test_embedding.py::test_every_column_is_the_oracles" in printed
    assert "harmless: SURVIVED" in printed
    assert "1 of 2 mutations caught" in printed
