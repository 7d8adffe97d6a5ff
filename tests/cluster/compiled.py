"""Small C libraries, compiled once and kept by the content of their source."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from .namespace import ClusterError

__all__ = ["compile_library"]


def compile_library(source: str) -> Path:
    """The shared library made of this package's C file `source`, cached in a folder of our own."""
    path = Path(__file__).with_name(source)
    folder = Path(tempfile.gettempdir()) / f"virtual-cluster-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # A folder that somebody else made could hold a library that somebody else wrote.
    if folder.is_symlink() or folder.stat().st_uid != os.getuid() or folder.stat().st_mode & 0o022:
        raise ClusterError(f"{folder} is not ours alone: remove it")
    library = folder / f"{path.stem}-{hashlib.sha256(path.read_bytes()).hexdigest()[:16]}.so"
    if not library.exists():
        # Compile beside and rename, so that nobody ever loads half a library.
        partial = library.with_suffix(f".{os.getpid()}")
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(partial), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise ClusterError(f"{source} does not compile: {done.stderr}")
        partial.rename(library)
    return library
