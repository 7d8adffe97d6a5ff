"""The text of files inside a pinned distribution."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

CACHE = Path.home() / ".cache" / "preflight-tables"
_DEADLINE_S = 900


class FetchError(Exception):
    """A distribution is neither installed nor available from the index."""


def reader(distribution: str, version: str, *, installed: bool) -> Callable[[str], str | None]:
    """Return a function that returns the text of a file of the distribution, or None if the file does not exist.

    Raises FetchError if that version is neither installed nor available from the index.
    """
    if installed:
        return _installed(distribution, version)
    archive = _archive(distribution, version) or _download(distribution, version)
    return _zipped(archive) if archive.suffix == ".whl" else _tarred(archive)


def _installed(distribution: str, version: str) -> Callable[[str], str | None]:
    try:
        found = metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        found = None
    if found is None or found.version.partition("+")[0] != version:
        raise FetchError(
            f"{distribution}=={version} is not installed; install it, because this table is read from installed files"
        )
    root = Path(str(found.locate_file("")))
    return lambda path: (root / path).read_text("utf-8") if (root / path).is_file() else None


def _archive(distribution: str, version: str) -> Path | None:
    name = distribution.replace("-", "_").lower()
    for path in sorted(CACHE.glob("*")):
        start = path.name.replace("-", "_").lower()
        if start.startswith((f"{name}_{version}_", f"{name}_{version}.tar")):
            return path
    return None


def _download(distribution: str, version: str) -> Path:
    CACHE.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*command, "--dest", str(CACHE), f"{distribution}=={version}"],
        capture_output=True,
        text=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    archive = _archive(distribution, version)
    if done.returncode or archive is None:
        raise FetchError(f"{distribution}=={version}: {done.stderr.strip()[-500:]}")
    return archive


def _zipped(archive: Path) -> Callable[[str], str | None]:
    def read(path: str) -> str | None:
        with zipfile.ZipFile(archive) as opened:
            return opened.read(path).decode("utf-8") if path in opened.namelist() else None

    return read


def _tarred(archive: Path) -> Callable[[str], str | None]:
    def read(path: str) -> str | None:
        with tarfile.open(archive) as opened:
            for member in opened:
                inner = member.name.partition("/")[2]
                if member.isfile() and inner.removeprefix("src/") == path:
                    stream = opened.extractfile(member)
                    return stream.read().decode("utf-8") if stream is not None else None
        return None

    return read
