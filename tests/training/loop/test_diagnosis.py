"""What is reported of an update whose gradient is not finite."""

import numpy as np
import pytest

from tests import cases
from training.loop.program import not_finite
from training.runs.named_arrays import flatten, unflatten

D, E, ED = (cases.random_theta(config) for config in (cases.D, cases.E, cases.ED))


@pytest.mark.parametrize(
    ("theta", "name", "is_stacked"),
    [
        (D, "layers.mlp.W_mlp1", True),
        (D, "W_e", False),
        (ED, "decoder.self_attention.heads.W_q", True),
        (ED, "encoder.norm1.gamma", True),
        ({"encoder": E, "W_c": np.zeros((3, 2))}, "encoder.W_e", False),
        ({"encoder": E, "W_c": np.zeros((3, 2))}, "encoder.norm.gamma", False),
        ({"encoder": E, "W_c": np.zeros((3, 2))}, "encoder.layers.norm1.beta", True),
        ({"transformer": D}, "transformer.layers.norm2.beta", True),
    ],
)
def test_the_first_layer_is_named_of_arrays_that_hold_all_layers(theta, name, is_stacked):
    arrays = {key: np.array(array) for key, array in flatten(theta).items()}
    arrays[name][1] = np.nan
    message = str(not_finite(7, 2.5, 0.1, unflatten(theta, arrays), 5))
    assert f"the gradients of {name}{'[1]' if is_stacked else ''} are not finite" in message
    assert "the last good checkpoint is of step 5" in message
