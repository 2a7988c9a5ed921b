"""The wheel works elsewhere: built, installed in an empty environment, and used from there."""

import pathlib
import subprocess
import sys
import sysconfig
import zipfile

import pytest

pytestmark = pytest.mark.end_to_end
ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = ("algorithms", "training")

# Unembedding's softmax of log 1, log 2, log 5: eighths.
USE_ALGORITHMS = """
import sys
import jax.numpy as jnp
import algorithms
print(algorithms.__file__)
print(*(8 * algorithms.unembedding(jnp.ones(1), jnp.log(jnp.array([[1.0], [2.0], [5.0]])))).round(4).tolist())
print(*sorted({"matplotlib", "orbax", "safetensors", "tokenizers", "torch"} & set(sys.modules)))
"""


def run(*command: object, cwd: pathlib.Path) -> str:
    """Run a command and return what it printed; its complaints are the failure's message."""
    done = subprocess.run([str(word) for word in command], check=False, cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The project's wheel, built without the network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    run(*build, "--wheel-dir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def environment(wheel, tmp_path_factory):
    """The folder of a fresh environment with only the wheel in it; the dependencies are borrowed."""
    folder = tmp_path_factory.mktemp("elsewhere")
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder)
    install = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python", "install"]
    run(*install, "--no-deps", "--no-index", wheel, cwd=folder)
    # A line of a .pth file only lengthens sys.path: an editable install's .pth is not followed.
    (site_packages,) = folder.glob("lib/python*/site-packages")
    borrowed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site_packages / "borrowed.pth").write_text("\n".join(sorted(borrowed)))
    return folder


def test_wheel_holds_every_module_and_the_type_markers_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    pages = (path for path in (ROOT / "training").rglob("*") if path.suffix in (".css", ".html", ".js"))
    of_page = {path.relative_to(ROOT).as_posix() for path in pages}
    assert len(of_page) > 9
    assert held == modules | of_page | {f"{package}/py.typed" for package in PACKAGES}


def test_algorithms_work_from_the_wheel_without_the_extras(environment):
    printed = run(environment / "bin" / "python", "-I", "-c", USE_ALGORITHMS, cwd=environment)
    where, values, extras = printed.splitlines()
    assert environment in pathlib.Path(where).parents
    assert values == "1.0 2.0 5.0"
    assert extras == "", "importing algorithms must not need what only training/ installs"


def test_the_commands_are_installed(environment):
    names = sorted(path.name for path in (environment / "bin").glob("formal-*"))
    assert names == sorted(f"formal-{path.stem.replace('_', '-')}" for path in (ROOT / "scripts").glob("*.py"))
    for name in ("benchmark", "convert", "induction", "serve", "train"):
        printed = run(environment / "bin" / f"formal-{name}", "--help", cwd=environment)
        assert printed.startswith(f"usage: formal-{name}")
