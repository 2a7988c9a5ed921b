"""Names of models: a run, the directory of a checkpoint, a GGUF file, or ``hf:OWNER/NAME@REVISION``, of the hub.

Whatever is not a run is converted into the cache, once: in its own precision, or in bfloat16 if it is quantized.
"""

import contextlib
import math
import tempfile
from collections.abc import Callable
from pathlib import Path

import filelock

from training.data.hub_names import HUB, revision_of
from training.data.records import fingerprint
from training.data.token_store import default_cache_dir
from training.disk import local_path
from training.interchange import convert
from training.interchange.errors import InterchangeError
from training.interchange.gguf_file import SUFFIX
from training.interchange.hub import downloaded, name_on_hub, origin_of
from training.interchange.pretrained import STORED, SUFFIXES, is_ours

MODEL = "a run, a checkpoint's directory, a GGUF file, or hf:OWNER/NAME@REVISION"
"""The forms of a name, for --help."""


def as_run(
    name: str | Path,
    *,
    cache_dir: Path | None = None,
    unused_since: float = 0.0,
    say: Callable[[str], None] = lambda text: None,
    progress: Callable[[int, int], None] = lambda n, total: None,
) -> Path:
    """Return the directory of the run that a name means, converting the model into the cache if it is not there yet:
    then `say` is called with a sentence on its size and license, and `progress` with the number of tensors read since
    the last call, and the total. Models that nothing has used since a time are removed before, as by `clear`. Raises
    InterchangeError if the model cannot be downloaded or converted.
    """
    target = _in_cache(name, cache_dir or default_cache_dir())
    if target is None:
        return local_path(name)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{target}.lock"):
            if target.is_dir():
                (target / "config.json").touch()
            else:
                clear(cache_dir or default_cache_dir(), unused_since=unused_since)
                source = downloaded(str(name))
                origin = origin_of(str(name), source)
                say(convert(source, target, dtype=STORED, origin=origin, progress=progress))
    except OSError as error:
        raise InterchangeError(f"cannot convert {name} into {target}: {error.strerror or error}") from None
    return target


def clear(cache_dir: Path, *, unused_since: float = math.inf) -> None:
    """Remove the models in the cache that nothing has used since a time, in seconds since 1970 (default: all)."""
    for config in (cache_dir / "models").glob("*/config.json"):
        model = config.parent
        if model.name.startswith("."):  # another process writes it, or removes it
            continue
        with contextlib.suppress(FileNotFoundError):
            if config.stat().st_mtime < unused_since:
                with tempfile.TemporaryDirectory(prefix=".removed-", dir=model.parent) as removed:
                    model.rename(Path(removed) / model.name)  # whole, or not at all


def _in_cache(name: str | Path, cache_dir: Path) -> Path | None:
    """Return where the run of a converted model is; None if the name is that of a run, or of nothing."""
    if str(name).startswith(HUB):
        revision = revision_of(str(name))
        at = "" if revision is None else f"@{revision}"
        return cache_dir / "models" / f"{name_on_hub(str(name))}{at}".replace("/", "--")
    path = local_path(name)
    if path.suffix == SUFFIX and not path.exists():
        raise InterchangeError(f"there is no file {path}")
    if path.is_file():
        files = [path]
    elif (path / "config.json").is_file() and not _is_run(path):
        files = sorted(file for file in path.iterdir() if file.suffix in SUFFIXES)
    else:
        return None
    state = [path.absolute(), *((file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files)]
    return cache_dir / "models" / f"{path.name.removesuffix(SUFFIX)}-{fingerprint(*state)[:12]}"


def _is_run(path: Path) -> bool:
    try:
        return is_ours(path)
    except InterchangeError:  # a damaged config.json, which reading the run reports
        return True
