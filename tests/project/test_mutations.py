"""The list of wrong edits still fits the code; `python -m tests.mutations` tries whether the tests catch them."""

import pathlib

import pytest

from tests import mutations

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", mutations.MUTATIONS)
def test_the_text_to_replace_stands_there_once(name):
    mutation = mutations.MUTATIONS[name]
    text = (ROOT / "algorithms" / mutation.file).read_text("utf-8")
    assert text.count(mutation.old) == 1
    assert mutation.new != mutation.old
    for test in mutations.tests_of(mutation):
        assert (ROOT / test.split("::")[0]).exists()


def test_no_two_mutations_are_the_same_and_every_algorithm_has_one():
    edits = {(m.file, m.old, m.new) for m in mutations.MUTATIONS.values()}
    assert len(edits) == len(mutations.MUTATIONS) >= 25
    assert {m.algorithm for m in mutations.MUTATIONS.values()} == set(range(1, 16))


@pytest.mark.slow
def test_a_mutation_is_caught_and_a_change_of_nothing_is_not(monkeypatch, capsys):
    harmless = mutations.Mutation("embedding.py", "e = lookup(W_e, v)", "e = lookup(W_e, 0 + v)", 1, "return")
    monkeypatch.setitem(mutations.MUTATIONS, "harmless", harmless)
    assert mutations.main(["token off by one", "harmless"]) == 1
    printed = capsys.readouterr().out
    assert "token off by one: algorithms/test_embedding.py::test_every_column_is_the_oracles" in printed
    assert "harmless: SURVIVED" in printed
    assert "1 of 2 mutations caught" in printed
