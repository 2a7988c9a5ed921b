"""Random cases of attention against the printed lines: see tests/fuzz."""

import itertools

import hypothesis
import jax
import numpy as np
import pytest
from hypothesis import strategies as st

from tests.fuzz import attention

AT_ONCE = 40
"""Cases after which JAX forgets what it has compiled: its compiler has crashed in a process that kept thousands."""
CASES = itertools.count(1)
PROFILE = hypothesis.settings()
FEW_OR_MANY = hypothesis.settings(
    max_examples=3 if PROFILE.derandomize else PROFILE.max_examples,
    phases=set(PROFILE.phases) - {hypothesis.Phase.shrink},  # a smaller seed is another case, not a simpler one
)


@pytest.mark.slow
@FEW_OR_MANY
@hypothesis.given(seed=st.integers(0, 2**32 - 1))
def test_random_cases_pass(seed):
    attention.check(np.random.default_rng(seed))
    if next(CASES) % AT_ONCE == 0:
        jax.clear_caches()
