"""A PostgreSQL server of Debian for tests, by an unprivileged user, on a socket in a folder of its own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.waiting import until

#: Debian's own user of the server; the other one is everywhere.
_USERS = ("postgres", "nobody")
_START_S, _STOP_S = 60.0, 30.0


def programs() -> Path | None:
    """The folder of the newest installed server; None without one."""
    found = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    return max(found, key=lambda path: int(path.parent.name.partition(".")[0]), default=None)


@contextmanager
def running_server() -> Iterator[Path]:
    """The folder with the socket of a running server, which is ended and removed afterwards."""
    folder = programs()
    assert folder is not None
    home = Path(tempfile.mkdtemp(prefix="preflight-pg-"))
    # The server refuses to run as root.
    user = next((name for name in _USERS if _exists(name)), None) if os.geteuid() == 0 else None
    try:
        if user is not None:
            shutil.chown(home, user)
        data = home / "data"
        made = [folder / "initdb", "-D", data, "-U", "preflight", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(
            [*map(str, made)],
            check=True,
            cwd="/",
            user=user,
            group=0 if user else None,
            capture_output=True,
            timeout=120,
        )
        with (home / "log").open("wb") as log:
            server = subprocess.Popen(
                [str(folder / "postgres"), "-D", str(data), "-k", str(home), "-c", "listen_addresses="],
                cwd="/",
                user=user,
                group=0 if user else None,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        try:
            _wait(home, server)
            yield home
        finally:
            server.terminate()
            try:
                server.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait(_STOP_S)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def address_of(home: Path, database: str) -> str:
    """The address of a new, empty database of the server."""
    import psycopg

    with psycopg.connect(f"host={home} user=preflight dbname=postgres", autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"')
    return f"postgresql://preflight@/{database}?host={home}"


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _wait(home: Path, server: subprocess.Popen[bytes]) -> None:
    import psycopg

    def answers() -> bool:
        with suppress(psycopg.OperationalError):
            psycopg.connect(f"host={home} user=preflight dbname=postgres", connect_timeout=5).close()
            return True
        assert server.poll() is None, f"PostgreSQL did not start: {(home / 'log').read_text()}"
        return False

    until(answers, within_s=_START_S)
