"""The tests of the scripts run whole commands."""

import pathlib

import pytest

HERE = pathlib.Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark every test of this folder, before any is left out."""
    for item in items:
        if HERE in item.path.parents and not item.get_closest_marker("compilers"):
            item.add_marker(pytest.mark.end_to_end)
