"""What a few files hold, as digests that nodes can be compared by: cheap, bounded in bytes and in time."""

from __future__ import annotations

import hashlib
import os
import time

from preflight.node.record import ANNOTATED, dataclass

if ANNOTATED:
    from typing import Dict, Iterable, List, Tuple

#: So many files are read; which ones depends on their names alone, so that every node reads the same.
MOST_FILES = 8
#: A file up to here is read whole; of a larger one its head, middle and tail.
WHOLE_BYTES = 1 << 20
PIECE_BYTES = 64 * 1024
#: No further file is begun after so long; a slow disk is no reason to make everybody wait.
ENOUGH_S = 1.5


@dataclass(frozen=True)
class Sample:
    """A digest of one file: of all of it (`whole`), or of its size, head, middle and tail."""

    name: str
    size_bytes: int
    digest: str
    whole: bool


def chosen(names: Iterable[str]) -> List[str]:
    """The names to read, by their hashes: as good as drawn by lot, and the same ones on every node."""
    return sorted(names, key=lambda name: hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest())[:MOST_FILES]


def sampled(files: Dict[str, str]) -> Tuple[List[Sample], str]:
    """Digests of some of the files (name -> path), and why there are fewer than there should be."""
    found = []  # type: List[Sample]
    began = time.monotonic()
    for name in chosen(files):
        if time.monotonic() - began > ENOUGH_S:
            return found, "reading took longer than %.1f s" % ENOUGH_S
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
        if size <= WHOLE_BYTES:
            digest.update(file.read(WHOLE_BYTES + 1) or b"")
            return Sample(name, size, digest.hexdigest()[:16], True)
        for place in (0, size // 2, size - PIECE_BYTES):
            file.seek(place)
            digest.update(file.read(PIECE_BYTES) or b"")
        return Sample(name, size, digest.hexdigest()[:16], False)
