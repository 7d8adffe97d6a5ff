"""The content of a few files, as digests to compare between nodes: bounded in bytes and in time."""

from __future__ import annotations

import hashlib
import os
import time
from dataclasses import dataclass
from typing import Dict, Iterable, List, Tuple

#: The number of files that are read; the selection depends on their names alone, so that every node reads the same.
MAX_FILES = 8
#: A file up to this size is read completely; of a larger one its head, middle and tail.
FULL_READ_BYTES = 1 << 20
PIECE_BYTES = 64 * 1024
#: No further file is read after this time; a slow disk must not delay the check.
TIME_LIMIT_S = 1.5


@dataclass(frozen=True)
class Sample:
    """A digest of one file: of all of it (`whole`), or of its size, head, middle and tail."""

    name: str
    size_bytes: int
    digest: str
    whole: bool


def chosen(names: Iterable[str]) -> List[str]:
    """The names to read, selected by their hashes: practically random, and the same ones on every node."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())[:MAX_FILES]


def sampled(files: Dict[str, str]) -> Tuple[List[Sample], str]:
    """Digests of some of the files (name -> path), and why there are fewer than planned."""
    found = []  # type: List[Sample]
    began = time.monotonic()
    for name in chosen(files):
        if time.monotonic() - began > TIME_LIMIT_S:
            return found, "reading took longer than %.1f s" % TIME_LIMIT_S
        try:
            found.append(digest_of(name, files[name]))
        except OSError as error:
            return found, "%s: %s" % (name, error.strerror or error)
    return found, ""


def digest_of(name: str, path: str) -> Sample:
    """The digest of one regular file. Raises OSError."""
    # A name may have become a pipe meanwhile, and opening that would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        size = os.fstat(descriptor).st_size
        digest = hashlib.sha256(b"%d\n" % size)
        if size <= FULL_READ_BYTES:
            digest.update(file.read(FULL_READ_BYTES + 1) or b"")
            return Sample(name, size, digest.hexdigest()[:16], True)
        for place in (0, size // 2, size - PIECE_BYTES):
            file.seek(place)
            digest.update(file.read(PIECE_BYTES) or b"")
        return Sample(name, size, digest.hexdigest()[:16], False)
