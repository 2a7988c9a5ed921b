"""A browser without a window, for the book and the site."""

import shutil
import subprocess

import pytest

from tests.browser import FLAGS as OF_EVERY_PAGE

FLAGS = ["--headless", "--disable-quic", "--force-prefers-reduced-motion", *OF_EVERY_PAGE]


@pytest.fixture(scope="module")
def browser():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium found; on Debian: apt install chromium")

    def run(url, folder, *options):
        profile = folder / "profile"
        shutil.rmtree(profile, ignore_errors=True)
        command = [found, *FLAGS, f"--user-data-dir={profile}", *options, url]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=180)

    return run
