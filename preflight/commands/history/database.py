"""The database of the history: an SQLite file, or a PostgreSQL server for a fleet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)

from preflight._util.usage_error import UsageError

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import URL, Connection, Engine


METADATA = MetaData()


def _reference(table: str, *, key: bool = False) -> Column[int]:
    name = f"{table.removesuffix('s')}_id"
    return Column(name, Integer, ForeignKey(f"{table}.id"), primary_key=key, nullable=False, autoincrement=False)


#: One row per run. `key` identifies the run, so that it is never stored twice; `began` counts seconds since the epoch.
RUNS = Table(
    "runs",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("key", String(64), nullable=False, unique=True),
    Column("began", BigInteger, nullable=False, index=True),
    Column("verb", String(16), nullable=False),
    Column("verdict", String(16), nullable=False),
    Column("exit_code", SmallInteger, nullable=False),
    Column("executor", String(64), nullable=False),
    Column("tool_version", String(64), nullable=False),
)
NODES = Table(
    "nodes", METADATA, Column("id", Integer, primary_key=True), Column("name", String(255), nullable=False, unique=True)
)
QUANTITIES = Table(
    "quantities",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("name", String(128), nullable=False, unique=True),
    Column("title", Text, nullable=False),
    Column("unit", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("better", String(16), nullable=False),
    Column("least", Double, nullable=False),
    Column("share", Double, nullable=False),
)
#: Components of a node, as JSON; equal nodes share a row.
PROPERTY_SETS = Table(
    "property_sets",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("content", Text, nullable=False),
)
#: The result of a node in a run: `passing`, `failing` or `unknown`, and the problem of one that did not answer.
NODE_RUNS = Table(
    "node_runs",
    METADATA,
    _reference("runs", key=True),
    _reference("nodes", key=True),
    Column("state", String(8), nullable=False),
    Column("problem", Text, nullable=False),
    Column("property_set_id", Integer, ForeignKey("property_sets.id")),
)
#: Outcomes on a node: faults (`fail`, or `noted` if they did not count), and undecided required checks (`unknown`).
OUTCOMES = Table(
    "outcomes",
    METADATA,
    Column("id", Integer, primary_key=True),
    _reference("runs"),
    _reference("nodes"),
    Column("rule", String(16), nullable=False),
    Column("name", String(128), nullable=False),
    Column("status", String(16), nullable=False),
    Column("severity", String(16), nullable=False),
    Column("message", Text, nullable=False),
    Index("ix_outcomes_run_id", "run_id"),
)
#: The values of one quantity in one run, as JSON lists of equal length: the ids of the nodes, those of their peers for
#: links (otherwise empty), and the values. One row per value would take seconds to read.
MEASUREMENTS = Table(
    "measurements",
    METADATA,
    _reference("runs", key=True),
    Column("quantity_id", Integer, ForeignKey("quantities.id"), primary_key=True, autoincrement=False),
    Column("node_ids", Text, nullable=False),
    Column("peer_ids", Text, nullable=False),
    Column("value_list", Text, nullable=False),
)
#: The tables with rows of a run, in the order in which the rows can be removed.
OF_RUNS = (MEASUREMENTS, OUTCOMES, NODE_RUNS)


#: Time limit for a writer to wait for others. A run of ten thousand nodes is written in a few seconds.
LOCK_S = 60
_CONNECT_S = 10
#: Time limit for a reader to wait for a writer, and for a server to answer.
_READ_LOCK_S = 5
#: Largest number of simultaneous read connections to a server.
_READERS = 4
#: Advisory lock ("pref" as a number) that PostgreSQL writers take in turn; SQLite writers use the lock on the file.
_LOCK = 0x70726566
_INSTALL = 'pip install "preflight-train[history]"'


@dataclass(frozen=True, slots=True)
class Database:
    """An open database with the current tables. `label` is its address without a password."""

    engine: Engine
    label: str

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection that sees one state of the database. Raises UsageError."""
        with _errors(f"{self.label} cannot be read"), self.engine.connect() as connection:
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Yield a connection whose changes are committed together or not at all, one process at a time. Raises
        UsageError.
        """
        with _errors(f"{self.label} cannot be written"), self.engine.connect() as connection, connection.begin():
            _take_turn(connection)
            yield connection

    def close(self) -> None:
        self.engine.dispose()


def open_database(address: str, *, create: bool = True) -> Database:
    """Open the database at `sqlite:///FILE` or `postgresql://HOST/NAME`, and migrate it. Raises UsageError."""
    url = _parse_address(address)
    label = url.render_as_string(hide_password=True)
    from sqlalchemy import create_engine, event

    if url.get_backend_name() == "sqlite":
        _check_file(url, label, create)
        engine = create_engine(url, connect_args={"timeout": LOCK_S})
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        options = f"-c lock_timeout={LOCK_S * 1000} -c application_name=preflight"
        engine = create_engine(url, connect_args={"connect_timeout": _CONNECT_S, "options": options})
    database = Database(engine, label)
    try:
        _migrate(database)
    except BaseException:
        database.close()
        raise
    return database


class HistoryUnavailable(UsageError):
    """The database cannot be shown: `kind` is `missing`, `older`, `newer` or `unreadable`."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class ReadOnlyHistory:
    """A database that is only read, by connections that cannot write and whose queries have a deadline."""

    engine: Engine
    label: str
    file: Path | None
    newest: str

    @contextmanager
    def reading(self, deadline_s: float) -> Iterator[Connection | None]:
        """Yield a connection that sees one state; None if nothing was written yet. Raises HistoryUnavailable."""
        if self.file is not None and not self.file.is_file():
            raise HistoryUnavailable("missing", f"{self.label}: no such file; `preflight nodes --history` creates it")
        try:
            with _errors(f"{self.label} cannot be read"), self.engine.connect() as connection:
                _limit(connection, deadline_s)
                yield connection if self._is_current(connection) else None
        except HistoryUnavailable:
            raise
        except UsageError as error:
            raise HistoryUnavailable("unreadable", str(error)) from None

    def close(self) -> None:
        self.engine.dispose()

    def _is_current(self, connection: Connection) -> bool:
        """Return whether the tables have the current version; False if there are no tables."""
        from alembic.migration import MigrationContext
        from sqlalchemy import inspect

        revision = MigrationContext.configure(connection).get_current_revision()
        if revision == self.newest:
            return True
        if revision is None:
            if not inspect(connection).get_table_names():
                return False
            raise HistoryUnavailable(
                "unreadable", f"{self.label} is not a preflight history: the database has other tables"
            )
        if revision in _known_revisions():
            raise HistoryUnavailable(
                "older",
                f"{self.label} was written by an older preflight (schema {revision}, expected {self.newest}); to "
                f"update it, run: preflight history --history {self.label}",
            )
        raise HistoryUnavailable(
            "newer", f"{self.label} was written by a newer preflight (schema {revision}); update preflight"
        )


def open_read_only(address: str) -> ReadOnlyHistory:
    """Prepare to read the database without changing it; the file is opened again each time. Raises UsageError."""
    url = _parse_address(address)
    label = url.render_as_string(hide_password=True)
    from sqlalchemy import URL, NullPool, create_engine, event

    if url.get_backend_name() == "sqlite":
        _check_name(url)
        file = Path(url.database or "").absolute()
        # `as_uri` quotes what would be an option of SQLite.
        only = URL.create("sqlite", database=file.as_uri(), query={"mode": "ro", "uri": "true"})
        engine = create_engine(only, poolclass=NullPool, connect_args={"timeout": _READ_LOCK_S})
        event.listen(engine, "connect", _prepare_reader)
        event.listen(engine, "begin", _begin_sqlite)
        return ReadOnlyHistory(engine, label, file, _newest_revision())
    options = "-c application_name=preflight -c default_transaction_read_only=on"
    engine = create_engine(
        url,
        isolation_level="REPEATABLE READ",
        pool_size=_READERS,
        max_overflow=0,
        pool_timeout=_READ_LOCK_S,
        pool_pre_ping=True,
        connect_args={"connect_timeout": _READ_LOCK_S, "options": options},
    )
    return ReadOnlyHistory(engine, label, None, _newest_revision())


def _prepare_reader(connection: Any, record: Any) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only = ON")


def _limit(connection: Connection, deadline_s: float) -> None:
    """Make the database cancel a query that takes too long."""
    if connection.dialect.name == "sqlite":
        until = time.monotonic() + deadline_s
        driver: Any = connection.connection.dbapi_connection
        driver.set_progress_handler(lambda: time.monotonic() > until, 20_000)
    else:
        connection.exec_driver_sql(f"SET LOCAL statement_timeout = {max(1, int(deadline_s * 1000))}")


def _parse_address(address: str) -> URL:
    """Return the checked address. Errors never show a password."""
    try:
        from sqlalchemy import make_url
        from sqlalchemy.exc import ArgumentError
    except ModuleNotFoundError:
        raise UsageError(f"--history needs packages that are not installed; run: {_INSTALL}") from None
    expected = "expected sqlite:///FILE (sqlite:////var/lib/... for an absolute path) or postgresql://USER@HOST/NAME"
    try:
        url = make_url(address)
    except (ArgumentError, ValueError):
        raise UsageError(f"--history: not a database address; {expected}") from None
    backend = url.drivername.partition("+")[0]
    if backend == "postgres":
        backend = "postgresql"
    if backend not in ("sqlite", "postgresql"):
        raise UsageError(f"--history: {backend!r} is not a supported database; {expected}")
    if backend == "sqlite":
        return url.set(drivername="sqlite")
    try:
        import psycopg  # noqa: F401
    except ImportError:
        raise UsageError(f"--history postgresql://... needs psycopg, which is not installed; run: {_INSTALL}") from None
    return url.set(drivername="postgresql+psycopg")


def _check_name(url: URL) -> None:
    if not url.database or url.database == ":memory:":
        raise UsageError("--history sqlite: names no file; use sqlite:///FILE")


def _check_file(url: URL, label: str, create: bool) -> None:
    _check_name(url)
    assert url.database is not None
    file = Path(url.database)
    if not file.exists():
        if not create:
            raise UsageError(f"{label}: no such file; `preflight nodes --history {label}` creates it")
        if not file.parent.is_dir():
            raise UsageError(f"{label}: the folder {file.parent} does not exist")


def _prepare_sqlite(connection: Any, record: Any) -> None:
    # `_begin_sqlite` begins transactions, not the driver at the first change.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.execute("PRAGMA synchronous = FULL")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN")


def _take_turn(connection: Connection) -> None:
    """Wait until no other process writes to the database."""
    if connection.dialect.name == "sqlite":
        # A transaction that began with a read could not become a writer while another one commits.
        connection.exec_driver_sql("ROLLBACK")
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    else:
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_LOCK})")


def _migrate(database: Database) -> None:
    """Migrate the tables to the current version, one process at a time."""
    from alembic.migration import MigrationContext

    config = _migration_config()
    newest = _newest_revision()

    def version(connection: Connection) -> str | None:
        return MigrationContext.configure(connection).get_current_revision()

    with _errors(f"{database.label} cannot be opened"), database.engine.connect() as connection:
        if version(connection) == newest:
            return
    with database.writing() as connection:
        found = version(connection)
        if found == newest:
            return
        if found is not None and found not in _known_revisions():
            raise UsageError(f"{database.label} was written by a newer preflight (schema {found}); update preflight")
        from alembic import command

        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _migration_config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    return config


def _newest_revision() -> str:
    from alembic.script import ScriptDirectory

    newest = ScriptDirectory.from_config(_migration_config()).get_current_head()
    assert newest is not None
    return newest


def _known_revisions() -> set[str]:
    from alembic.script import ScriptDirectory

    return {step.revision for step in ScriptDirectory.from_config(_migration_config()).walk_revisions()}


@contextmanager
def _errors(what: str) -> Iterator[None]:
    """Turn database errors into a message with the driver's first line, without parameters and passwords."""
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except SQLAlchemyError as error:
        cause = getattr(error, "orig", None) or error
        lines = str(cause).strip().splitlines() or [type(cause).__name__]
        raise UsageError(f"{what}: {lines[0]}") from None
