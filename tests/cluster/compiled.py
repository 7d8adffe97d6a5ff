"""Small C libraries and programs, compiled once and cached by the content of their source."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from .namespace import ClusterError

__all__ = ["compile_library", "compile_program"]


def compile_library(source: str) -> Path:
    """The shared library made of this package's C file `source`, cached in a folder of our own."""
    return _compiled(Path(__file__).with_name(source), ".so", ["-shared", "-fPIC"])


def compile_program(source: str, folder: Path) -> Path:
    """The program made of the C file `source` in `folder`, cached in the same way."""
    return _compiled(folder / source, "", [])


def _compiled(path: Path, suffix: str, options: list[str]) -> Path:
    folder = Path(tempfile.gettempdir()) / f"virtual-cluster-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # A folder made by another user could hold a foreign library.
    if folder.is_symlink() or folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise ClusterError(f"{folder} is not ours alone: remove it")
    made = folder / f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}{suffix}"
    if not made.exists():
        # Compile beside and rename, so that no process loads an incomplete file.
        partial = made.with_suffix(f".{os.getpid()}")
        command = ["cc", *options, "-O1", "-Wall", "-o", str(partial), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise ClusterError(f"{path.name} does not compile: {done.stderr}")
        partial.rename(made)
    return made
