"""Random cases of every area of tests/fuzz, and that what damages JSON does."""

import itertools
import json

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.fuzz import attention, damage, files, requests

AREAS = {"attention": attention.check, "files": files.check, "requests": requests.check}
AT_ONCE = 40
"""Cases after which JAX forgets what it has compiled: its compiler has crashed in a process that kept thousands."""
CASES = itertools.count(1)
PROFILE = hypothesis.settings()
FEW_OR_MANY = hypothesis.settings(
    max_examples=3 if PROFILE.derandomize else PROFILE.max_examples,
    phases=set(PROFILE.phases) - {hypothesis.Phase.shrink},  # a smaller seed is another case, not a simpler one
)


@pytest.fixture(scope="module", autouse=True)
def no_server_afterwards():
    yield
    requests.close()


@pytest.mark.slow
@pytest.mark.parametrize("area", AREAS)
@FEW_OR_MANY
@hypothesis.given(seed=st.integers(0, 2**32 - 1))
def test_random_cases_of_every_area_pass(area, seed):
    AREAS[area](np.random.default_rng(seed))
    if next(CASES) % AT_ONCE == 0:
        jax.clear_caches()


def test_damage_changes_something_most_of_the_time():
    rng = np.random.default_rng(0)
    value = {"a": [1, 2, {"b": "c"}], "d": None, "e": 1.5}
    original = json.dumps(value)
    damaged = [json.dumps(damage.damaged_json(rng, value)) for _ in range(200)]
    assert json.dumps(value) == original
    assert sum(d != original for d in damaged) > 150
    assert len(set(damaged)) > 100
    assert len({damage.damaged_bytes(rng, original.encode()) for _ in range(100)}) > 80
