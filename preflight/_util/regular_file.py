"""Opens and reads regular files without blocking, and replaces files completely or not at all.

preflight opens every named file here: opening a FIFO waits for a writer, opening a device may have effects, and
/dev/zero never ends. Such a file is rejected with an `OSError` whose `strerror` is the reason.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from pathlib import Path
from typing import IO

_MIB = 1024 * 1024
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
    (stat.S_ISLNK, "a symbolic link"),
)


class NotRegular(OSError):
    """The path is not a regular file; `kind` is `a FIFO`, `a socket`, `a directory` ..."""

    def __init__(self, path: str | Path, mode: int) -> None:
        self.is_link = stat.S_ISLNK(mode)
        self.kind = next((name for test, name in _KINDS if test(mode)), "something else")
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        super().__init__(code, f"it is {self.kind}, not a regular file", str(path))


class TooLarge(OSError):
    """The file has `size_bytes`, which exceeds the limit."""

    def __init__(self, path: str | Path, size_bytes: int, max_file_bytes: int) -> None:
        self.size_bytes = size_bytes
        message = f"it has {size_of(size_bytes)}, but at most {size_of(max_file_bytes)} are read"
        super().__init__(errno.EFBIG, message, str(path))


class Exchanged(OSError):
    """The file was replaced by another one while it was being opened."""

    def __init__(self, path: str | Path) -> None:
        super().__init__(errno.EAGAIN, "it changed while it was being opened; run again", str(path))


def open_regular(path: str | Path, *, max_file_bytes: int | None = None, follow_links: bool = True) -> IO[bytes]:
    """Open a regular file, unbuffered; without `follow_links` not through a link. Raises OSError."""
    # Checked before opening, because opening a device can already have effects; and again afterwards, because it may
    # have been replaced in between.
    before = os.stat(path, follow_symlinks=follow_links)  # noqa: PTH116
    if not stat.S_ISREG(before.st_mode):
        raise NotRegular(path, before.st_mode)
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    stream = os.fdopen(os.open(path, flags), "rb", buffering=0)
    try:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise NotRegular(path, status.st_mode)
        if (status.st_dev, status.st_ino) != (before.st_dev, before.st_ino):
            raise Exchanged(path)
        if max_file_bytes is not None and status.st_size > max_file_bytes:
            raise TooLarge(path, status.st_size, max_file_bytes)
    except OSError:
        stream.close()
        raise
    return stream


def read(path: str | Path, max_file_bytes: int, *, follow_links: bool = True) -> bytes:
    """Return the content of a regular file of at most `max_file_bytes`. Raises the errors of `open_regular`."""
    with open_regular(path, max_file_bytes=max_file_bytes, follow_links=follow_links) as stream:
        content = read_up_to(stream, max_file_bytes + 1)
    if len(content) > max_file_bytes:
        # It grew, or it is in /proc, where files have no size.
        raise TooLarge(path, len(content), max_file_bytes)
    return content


def read_text(
    path: str | Path, max_file_bytes: int, *, encoding: str = "utf-8", errors: str = "strict", follow_links: bool = True
) -> str:
    """Return the text of a file with line feeds as line endings. Raises as `open_regular`, and UnicodeDecodeError."""
    text = read(path, max_file_bytes, follow_links=follow_links).decode(encoding, errors)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def replace(path: Path, data: bytes, *, mode: int, owner: tuple[int, int] | None = None, durable: bool = False) -> None:
    """Replace `path` with a new file with this content, completely or not at all; a link is replaced itself.

    Args:
        owner: user and group; None for those of this process.
        durable: whether the file is synced to the disk before it replaces the old one.

    Raises:
        OSError: the file cannot be written; nothing has changed.
    """
    import tempfile

    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:64]}.")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            if durable:
                stream.flush()
                os.fsync(descriptor)
        if owner is not None:
            os.chown(temporary, *owner)
        temporary.chmod(mode)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def read_up_to(stream: IO[bytes], max_bytes: int) -> bytes:
    """Return the rest of a stream, at most `max_bytes`."""
    pieces: list[bytes] = []
    remaining = max_bytes
    while remaining > 0 and (piece := stream.read(min(remaining, _MIB))):
        pieces.append(piece)
        remaining -= len(piece)
    return b"".join(pieces)


def read_pipe(stream: IO[bytes], max_bytes: int, timeout_s: float) -> bytes:
    """Return a program's output until it closes the pipe, at most `max_bytes`. Raises TimeoutError."""
    found: list[bytes] = []
    # A thread that waits for a pipe can be abandoned on every system; select on Windows accepts only sockets.
    reader = threading.Thread(target=lambda: found.append(read_up_to(stream, max_bytes)), name="pipe", daemon=True)
    reader.start()
    reader.join(timeout_s)
    if not found:
        raise TimeoutError(f"it was not closed within {timeout_s:g} s")
    return found[0]


def size_of(size_bytes: int) -> str:
    """Format as `20 GiB`, `1.5 MiB`, `256 KiB`, `12 bytes`."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{size_bytes} bytes"
