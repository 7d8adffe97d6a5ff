"""Folders of ssh's control sockets: one that is deleted with the run, or one that stays for the next."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from stat import S_IMODE, S_ISDIR

from preflight.executors.base import ExecutorError

#: A socket's path has at most 107 bytes (unix(7)), of which %C takes 40 and ssh's temporary suffix 17.
_MAX_FOLDER_LENGTH = 107 - len("/") - 40 - 17
_PREFIX = "preflight-ssh-"
_KEPT = "preflight-kept-"
_LOCK = "in-use"


class PrivateFolder:
    """A folder for control sockets that only we may enter, marked as in use by a lock that dies with us."""

    def __init__(self) -> None:
        """Create it, and remove those of killed runs. Raises ExecutorError if no location is suitable."""
        problem = ""
        for base in _bases():
            for stale in Path(base).glob(f"{_PREFIX}*"):
                _remove_if_stale(stale)
            try:
                self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            except OSError as error:
                problem = str(error)
                continue
            self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            # Another run may have considered it stale before it was locked.
            if len(str(self.path)) <= _MAX_FOLDER_LENGTH and (self.path / _LOCK).exists():
                return
            self.release()
            problem = f"{base} is not usable for sockets"
        raise _no_folder(problem)

    def release(self) -> None:
        """Remove it with its content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


class KeptFolder:
    """This user's folder for the control sockets of connections that outlive a run; ssh itself removes those."""

    def __init__(self) -> None:
        """Find or create it. Raises ExecutorError if no location is suitable, or another user could enter it."""
        problem = ""
        for base in _bases():
            self.path = Path(base) / f"{_KEPT}{os.getuid()}"
            if len(str(self.path)) > _MAX_FOLDER_LENGTH:
                problem = f"{base} is not usable for sockets"
                continue
            try:
                with contextlib.suppress(FileExistsError):
                    self.path.mkdir(mode=0o700)
                stat = self.path.lstat()
            except OSError as error:
                problem = str(error)
                continue
            if S_ISDIR(stat.st_mode) and stat.st_uid == os.getuid() and not S_IMODE(stat.st_mode) & 0o077:
                return
            problem = (
                f"{self.path} exists but is not a folder that only you can access; remove it, set XDG_RUNTIME_DIR to a "
                "folder of yours, or omit `keep`"
            )
        raise _no_folder(problem)

    def release(self) -> None:
        """Leave it and its content to the next run."""


def _bases() -> Iterator[str]:
    own = os.environ.get("XDG_RUNTIME_DIR", "")
    # The XDG specification says to ignore a relative path; here it would be a folder in the job's tree.
    yield from dict.fromkeys((*([own] if Path(own).is_absolute() else []), "/tmp", tempfile.gettempdir()))


def _no_folder(problem: str) -> ExecutorError:
    return ExecutorError("denied", f"cannot make a folder for ssh's control sockets: {problem}")


def _remove_if_stale(folder: Path) -> None:
    """Remove a folder of ours whose owner is gone: no process holds its lock."""
    with contextlib.suppress(OSError):
        stat = folder.lstat()
        if stat.st_uid != os.getuid() or not S_ISDIR(stat.st_mode):
            return
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder)
        finally:
            os.close(lock)
