"""The tests of the scripts run whole commands."""

import pathlib

import pytest

from training import commands

HERE = pathlib.Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark every test of this folder, before any is left out."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("compilers"):
            item.add_marker(pytest.mark.end_to_end)


@pytest.fixture
def called(capsys):
    """Run a command, such as generate; return its status, and what it printed to standard output and error."""

    def call(name, *arguments):
        capsys.readouterr()
        status = getattr(commands, f"{name}_main")([*map(str, arguments)])
        return status, *capsys.readouterr()

    return call


@pytest.fixture
def printed(called):
    """Run a command that succeeds; return what it printed to standard output."""

    def call(*words):
        status, out, err = called(*words)
        assert status == 0, err
        return out

    return call
