"""A small model of each kind, once for all tests of the server."""

import pytest

from tests.run_cases import make_run
from training.runs.trained_model import load_run


@pytest.fixture(scope="package")
def model(tmp_path_factory):
    return load_run(make_run(tmp_path_factory.mktemp("runs") / "small", "d"))


@pytest.fixture(scope="package")
def encoder(tmp_path_factory):
    return load_run(make_run(tmp_path_factory.mktemp("runs") / "encoder", "e"))
