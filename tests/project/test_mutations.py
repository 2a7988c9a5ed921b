"""The wrong edits still fit the code; `python -m tests.mutations` tries whether the tests catch them."""

import ast
import pathlib

from tests.mutations.by_hand import BY_HAND
from tests.mutations.equivalent import EQUIVALENT
from tests.mutations.facing import FACING, facing
from tests.mutations.generated import generated
from tests.mutations.planted import PLANTED
from training.crosscheck.algorithms import PSEUDOCODE

ROOT = pathlib.Path(__file__).resolve().parents[2]


def test_every_edit_by_hand_and_of_the_cross_check_fits_the_code():
    for edit in (*(edit for edit, _ in BY_HAND.values()), *(planted.edit for planted in PLANTED.values())):
        after = edit.made(ROOT)
        assert after != (ROOT / edit.file).read_text("utf-8")
        compile(after, edit.file, "exec")
    assert len({planted.edit for planted in PLANTED.values()}) == len(PLANTED) >= 100
    assert {planted.algorithm for planted in PLANTED.values()} == set(PSEUDOCODE)
    for _, tests in BY_HAND.values():
        assert all((ROOT / "tests" / test).exists() for test in tests)


def test_generated_edits_change_the_program():
    for name, edit in list(generated().items())[::17]:
        before = ast.dump(ast.parse((ROOT / edit.file).read_text("utf-8")))
        assert ast.dump(ast.parse(edit.made(ROOT))) != before, name


def test_every_tagged_file_and_every_rule_by_hand_has_edits_and_tests_that_it_faces():
    files = {edit.file for edit in generated().values()}
    assert {file.removeprefix("algorithms/").removesuffix(".py") for file in files} == set(FACING)
    for file in files:
        assert all((ROOT / "tests" / test).exists() for test in facing(file))
    assert len(generated()) > 1000


def test_what_is_listed_as_equivalent_exists_and_has_a_reason():
    assert EQUIVALENT.keys() <= generated().keys()
    assert all(len(reason) > 10 for reason in EQUIVALENT.values())
