"""A run without a mesh on a machine with several accelerators uses them all, or says what to type."""

import pytest

from training.mesh import shape
from training.mesh.shape import accelerators, over_all
from training.settings import Settings


@pytest.mark.parametrize(
    ("sizes", "n", "chosen", "mesh", "said"),
    [
        ({"batch_size": 16}, 8, False, "data=8", "all 8 devices share the work"),
        ({"batch_size": 16, "mesh": "data=2,model=4"}, 8, True, "data=2,model=4", None),
        ({"batch_size": 16}, 8, True, "", "7 of 8 devices are idle: --mesh data=8 uses all"),
        ({"batch_size": 12}, 8, False, "", "give batch_size 16"),
        ({"batch_size": 16, "accumulation_steps": 4}, 8, False, "", "give batch_size 32"),
        ({"batch_size": 16}, 1, False, "", None),
        ({"batch_size": 16}, 0, False, "", None),
    ],
)
def test_devices_that_divide_the_batch_are_used(sizes, n, chosen, mesh, said):
    settings, note = over_all(Settings(task="d", **sizes), n, chosen=chosen)
    assert settings == Settings(task="d", **sizes | {"mesh": mesh})
    assert note == "" if said is None else said in note


def test_the_cores_of_a_cpu_are_no_idle_devices(monkeypatch):
    monkeypatch.setattr(shape.jax, "device_count", lambda: 8)
    monkeypatch.setattr(shape.jax, "default_backend", lambda: "cpu")
    assert accelerators() == 0
    monkeypatch.setattr(shape.jax, "default_backend", lambda: "gpu")
    assert accelerators() == 8
