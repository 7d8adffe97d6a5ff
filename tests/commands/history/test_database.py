"""Runs in a database: two writers, crashes, what is removed, and errors in words."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.synchronize
import os
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.commands.history.account import to_json
from preflight.commands.history.database import open_database
from preflight.commands.history.past import add_run, check_keep, load_past, measured_in, names_in, why_not_kept
from preflight.engine.report import Report
from preflight.model.measurements import Measurements, NodeProperties, Quantity
from preflight.model.recording import InjectedFault, SmokeOptions
from tests.builders import judged, make_recording
from tests.commands.history.fleet import Fleet

pytestmark = pytest.mark.thorough

TEMPERATURE = Quantity("gpu_temperature", "temperature of the warmest GPU", "celsius", least=4.0)
LINK = Quantity("link_bandwidth", "throughput of a link", "bits_per_second", better="higher", share=0.1)


def reports(count: int, *, seed: int = 1, size: int = 6) -> list[Report]:
    """The first nights of a small fleet."""
    return list(Fleet(size, count, seed).reports())


def test_a_run_comes_back_as_it_was(address: str) -> None:
    (report,) = reports(1)
    names = tuple(record.node.name for record in report.nodes)
    report = replace(
        report,
        measurements=(
            Measurements(TEMPERATURE, names[:2], (45.0, 61.5)),
            Measurements(LINK, names[:2], (9.1e9, 8.9e9), (names[1], names[0])),
        ),
        properties=(NodeProperties(names[0], ("driver", "kernel"), ("550.54", "5.15 \N{MICRO SIGN}")),),
    )
    database = open_database(address)
    assert add_run(database, report)
    past = load_past(database)
    assert [run.verb for run in past.runs] == ["nodes"]
    assert set(past.nodes) == set(names)
    assert past.series["gpu_temperature"].values == {names[0]: [45.0], names[1]: [61.5]}
    assert past.series["gpu_temperature"].quantity == TEMPERATURE
    assert past.properties[past.sets[names[0]][0] or 0] == {"driver": "550.54", "kernel": "5.15 \N{MICRO SIGN}"}
    with database.reading() as connection:
        ((_, _, *lists),) = measured_in(connection, [past.runs[0].id], links=True)
        known = names_in(connection)
    nodes, peers, values = map(json.loads, lists)
    assert [known[node] for node in nodes] == list(names[:2]) and values == [9.1e9, 8.9e9]
    assert [known[peer] for peer in peers] == [names[1], names[0]]
    database.close()


def test_the_same_run_is_kept_once(address: str) -> None:
    first, second = reports(2)
    database = open_database(address)
    assert [add_run(database, report) for report in (first, second, first)] == [True, True, False]
    assert len(load_past(database).runs) == 2
    database.close()


def test_runs_are_in_the_order_of_time_and_not_of_writing(address: str) -> None:
    several = reports(3)
    database = open_database(address)
    for report in reversed(several):
        add_run(database, report)
    began = [run.began for run in load_past(database).runs]
    assert began == sorted(began) and len(began) == 3
    assert len(load_past(database, days=1.5).runs) == 2
    database.close()


def _write(address: str, seed: int, barrier: multiprocessing.synchronize.Barrier) -> None:
    several = reports(6, seed=seed)
    barrier.wait(60)
    database = open_database(address)
    for report in several:
        add_run(database, replace(report, run=replace(report.run, executor=f"writer {seed}")))
    database.close()


def test_writers_at_once_lose_nothing(address: str) -> None:
    """Four processes open a database that does not exist yet, and write as fast as they can."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(4)
    writers = [context.Process(target=_write, args=(address, seed, barrier)) for seed in range(1, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
    assert [writer.exitcode for writer in writers] == [0] * 4
    expected = {(report.run.created, seed) for seed in range(1, 5) for report in reports(6, seed=seed)}
    past = load_past(open_database(address))
    assert len(past.runs) == len(expected) == 24
    assert all(sum(state is not None for state in states) > 0 for states in past.states.values())
    assert all(len(values) == 24 for series in past.series.values() for values in series.values.values())


#: Writes runs without an end, and says when each is kept.
_FOREVER = """
import sys
from dataclasses import replace
from preflight.commands.history.database import open_database
from preflight.commands.history.past import add_run
from tests.commands.history.fleet import Fleet
report = next(iter(Fleet(400, 1, 1).reports()))
database = open_database(sys.argv[1])
for number in range(10_000):
    add_run(database, replace(report, run=replace(report.run, created=f"2026-01-01T00:00:00.{number:06d}+00:00")))
    print(number, flush=True)
"""


def test_a_crash_in_the_middle_loses_nothing_that_was_kept(address: str) -> None:
    """A writer is killed while it writes: each run that it said was kept is whole, and none is there in part."""
    root = Path(__file__).parents[3]
    for _ in range(3):
        before = _runs(address)
        writer = subprocess.Popen(
            [sys.executable, "-c", _FOREVER, address], stdout=subprocess.PIPE, cwd=root, text=True
        )
        assert writer.stdout is not None
        kept = [line for line, _ in zip(writer.stdout, range(3), strict=False)]
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait(60)
        after = _runs(address)
        # The first rounds kept the same runs under the same keys.
        assert after >= max(before, len(kept) + len(rest))
        past = load_past(open_database(address))
        for number in range(len(past.runs)):
            present = sum(states[number] is not None for states in past.states.values())
            assert present == max(
                sum(s is not None for s in column) for column in zip(*past.states.values(), strict=True)
            )
            assert all(
                sum(values[number] is not None for values in series.values.values()) == present
                for series in past.series.values()
            )


def _runs(address: str) -> int:
    database = open_database(address)
    try:
        return len(load_past(database).runs)
    finally:
        database.close()


def test_old_runs_are_removed_with_all_that_only_they_used(address: str) -> None:
    now = datetime.now(timezone.utc)
    several = [
        replace(report, run=replace(report.run, created=(now - timedelta(days=days)).isoformat()))
        for report, days in zip(reports(4), (40, 20, 10, 0), strict=True)
    ]
    odd = tuple(replace(item, values=("1.0", *item.values[1:])) for item in several[0].properties)
    database = open_database(address)
    add_run(database, replace(several[0], properties=odd))
    for report in several[1:]:
        add_run(database, report, keep="30d")
    past = load_past(database)
    assert len(past.runs) == 3
    assert all(item["driver"] != "1.0" for item in past.properties.values())
    add_run(database, several[3], keep="1runs")
    assert [run.began for run in load_past(database).runs] == [int(now.timestamp())]
    database.close()


@pytest.mark.parametrize("text", ["180", "d", "0d", "180 d", "1y", "-1d", "500run", "1000000d"])
def test_how_long_must_be_days_or_runs(text: str) -> None:
    with pytest.raises(UsageError, match="180d or 500runs"):
        check_keep(text)


def test_a_run_with_an_injected_fault_is_not_kept(tmp_path: Path) -> None:
    (report,) = reports(1)
    spoilt = replace(
        report, run=replace(report.run, smoke_options=SmokeOptions(injected_fault=InjectedFault("kill", 0)))
    )
    assert "injected" in why_not_kept(spoilt)
    assert "no nodes" in why_not_kept(judged(make_recording()))
    with pytest.raises(ValueError, match="injected"):
        add_run(open_database(f"sqlite:///{tmp_path}/h.db"), spoilt)


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("mysql://me:hidden-word@db/x", "'mysql' is not a kind of database"),
        ("nonsense", "not the address of a database"),
        ("sqlite://", "names no file"),
        ("sqlite:////no/such/folder/h.db", "the folder /no/such/folder does not exist"),
        ("postgresql://me:hidden-word@127.0.0.1:1/x", "cannot be opened"),
    ],
)
def test_errors_are_sentences_without_the_password(address: str, words: str) -> None:
    with pytest.raises(UsageError) as found:
        open_database(address)
    assert words in str(found.value)
    assert "hidden-word" not in str(found.value)


def test_a_file_that_is_no_database_and_one_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "text.db").write_text("this is not a database, but a text that is long enough for a header" * 40)
    with pytest.raises(UsageError, match=r"text\.db cannot be opened: file is not a database"):
        open_database(f"sqlite:///{tmp_path}/text.db")
    with pytest.raises(UsageError, match=r"no such file; `preflight nodes --history"):
        open_database(f"sqlite:///{tmp_path}/absent.db", create=False)
    assert not (tmp_path / "absent.db").exists()


def test_a_database_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    open_database(f"sqlite:///{tmp_path}/h.db").close()
    with sqlite3.connect(tmp_path / "h.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(UsageError, match=r"written by a newer preflight \(schema 9999\)"):
        open_database(f"sqlite:///{tmp_path}/h.db")


def test_migrations_lead_to_the_tables_of_today(address: str) -> None:
    """What alembic would still change is nothing."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from preflight.commands.history.database import METADATA

    database = open_database(address)
    with database.engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), METADATA) == []
    database.close()


def test_names_and_messages_from_nodes_are_kept_harmless(address: str) -> None:
    (report,) = reports(1)
    nodes = tuple(
        replace(
            record, node=replace(record.node, name=f"{record.node.name}\x00\x1b[31m"), problem="bad\x00 \ud800" * 400
        )
        for record in report.nodes
    )
    database = open_database(address)
    add_run(database, replace(report, nodes=nodes, findings=(), measurements=(), properties=()))
    past = load_past(database)
    assert len(past.nodes) == len(nodes)
    assert all(name.isprintable() for name in past.nodes)
    assert all(item.message.isprintable() and len(item.message) <= 500 for item in past.failures)
    database.close()


def test_both_kinds_of_database_give_the_same_account(tmp_path: Path, new_postgres: object) -> None:
    assert callable(new_postgres)
    found = []
    several = reports(20, size=40)
    for number, address in enumerate((f"sqlite:///{tmp_path}/h.db", new_postgres())):
        database = open_database(address)
        # The order of writing changes the numbers of rows, and must change nothing else.
        for report in several if number else reversed(several):
            add_run(database, report)
        database.close()
        found.append(to_json(replace(api.history(address, days=None), database="")))
    assert found[0] == found[1]
