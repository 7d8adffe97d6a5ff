"""`--history` of the commands that use nodes, and `preflight history`, as their users run them."""

from __future__ import annotations

import json
import multiprocessing
import multiprocessing.synchronize
import os
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.commands.history.account import account_of, restrict_to, to_json
from preflight.commands.history.database import open_database
from preflight.commands.history.past import Past, add_run, check_keep, load_past, measured_in, names_in, why_not_kept
from preflight.engine.report import Report
from preflight.model.measurements import Measurements, NodeProperties, Quantity
from preflight.model.recording import InjectedFault, SmokeOptions
from tests.builders import assert_follows_schema, judged, make_recording
from tests.commands.history.fleet import Fleet, Sample, missed_and_false, twelve
from tests.services.fleet_page.running import fetched, serving

pytestmark = pytest.mark.thorough

PAGE = Path(__file__).parents[3] / "docs" / "history.md"


def run(*arguments: str, cwd: Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a separate process."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("preflight")), *arguments],
        cwd=cwd,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


_NODES = ("nodes", "--on", "local", "--until", "node", "--select", "NOD")


def test_a_run_is_remembered_and_told(tmp_path: Path) -> None:
    done = run(*_NODES, "--history", "sqlite:///h.db", "--save", "run.json", "--expect", "os=plan9", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    told = run("history", "--history", "sqlite:///h.db", "--add", "run.json", "-o", "json", cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    account = assert_follows_schema(told.stdout.encode(), "history")
    # The same run is not there twice.
    assert account["runs"] == 1
    (node,) = account["nodes"]
    assert (node["state"], node["failures"], node["healthy_since"]) == ("failing", 1, None)
    assert node["properties"]["kernel"] == os.uname().release
    text = run("history", "-v", cwd=tmp_path, environment={"PREFLIGHT_HISTORY": "sqlite:///h.db"})
    assert text.returncode == 0
    assert "1 run of 1 node (sqlite:///h.db)" in text.stdout and "failing now, failed 1 time in 1 run" in text.stdout
    empty = run("history", "--history", "sqlite:///h.db", "--hosts", "other", "-o", "hosts", cwd=tmp_path)
    assert (empty.returncode, empty.stdout) == (0, "")


def test_a_wrong_address_is_found_before_the_run(tmp_path: Path) -> None:
    done = run(*_NODES, "--history", "postgresql://me:hidden-word@127.0.0.1:1/x", cwd=tmp_path)
    assert done.returncode == 2 and "cannot be opened" in done.stderr
    assert "hidden-word" not in done.stdout + done.stderr and "checking the nodes" not in done.stderr


def test_the_report_is_written_although_the_history_cannot_be(tmp_path: Path) -> None:
    """The database is lost during the run."""
    script = (
        "import sys\n"
        "from preflight.cli import main\n"
        "from preflight._util.usage_error import UsageError\n"
        "from preflight.commands.history import past\n"
        "def fail(*arguments, **options):\n"
        "    raise UsageError('sqlite:///h.db cannot be written: database is locked')\n"
        "past.add_run = fail\n"
        "sys.exit(main.run(sys.argv[1:]))\n"
    )
    options = ("--save", "run.json", "-o", "json:report.json", "--history", "sqlite:///h.db")
    done = subprocess.run(
        [sys.executable, "-c", script, *_NODES, *options],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "not in the history: sqlite:///h.db cannot be written" in done.stderr
    assert "preflight history --add run.json" in done.stderr
    assert json.loads((tmp_path / "report.json").read_text())["exit_code"] == 0
    added = run("history", "--history", "sqlite:///h.db", "--add", "report.json", cwd=tmp_path)
    assert added.returncode == 0 and "1 run of 1 node" in added.stdout


def test_a_configuration_names_the_database_only_if_the_user_names_it(tmp_path: Path) -> None:
    (tmp_path / "preflight.toml").write_text('history = "sqlite:///h.db"\nhistory-keep = "30d"\n')
    found = run(*_NODES, cwd=tmp_path)
    assert found.returncode == 2 and "preflight.toml:1:" in found.stderr and "--config" in found.stderr
    named = run(*_NODES, "--config", "preflight.toml", cwd=tmp_path)
    assert named.returncode == 0, named.stderr
    assert (tmp_path / "h.db").exists()
    assert run("history", "--config", "preflight.toml", cwd=tmp_path).returncode == 0


def test_usage_errors(tmp_path: Path) -> None:
    for arguments, words in (
        (("history",), "no history was given"),
        (("history", "--history", "sqlite:///h.db", "--since", "5y"), "--since 5y"),
        (("history", "--history", "sqlite:///absent.db"), "no such file"),
        (("history", "--history", "sqlite:///h.db", "--add", "absent.json"), "absent.json cannot be read"),
        ((*_NODES, "--history", "sqlite:///h.db", "--history-keep", "5"), "--history-keep 5"),
    ):
        done = run(*arguments, cwd=tmp_path)
        assert done.returncode == 2 and words in done.stderr, done.stderr
    assert not (tmp_path / "absent.db").exists()


def test_the_five_commands_of_the_page(tmp_path: Path) -> None:
    """From nothing to a page with the failures of the night: all but the installation, on this machine as one node."""
    section = PAGE.read_text().partition("## Every night")[2]
    commands = re.search(r"```text\n(.*?)```", section, re.DOTALL)
    assert commands is not None
    lines = commands[1].splitlines()
    assert len(lines) == 5 and "venv" in lines[0] and 'install "preflight-train[history,serve]"' in lines[1]
    cron = shlex.split(lines[4])
    assert cron[0] == "echo" and cron[2:] == [">", "/etc/cron.d/preflight"]
    nightly = cron[1].split(" root ", 1)[1]
    (tmp_path / "preflight").mkdir()
    for command in (lines[3], nightly):
        words = shlex.split(command.replace("/var/lib/", f"{tmp_path}/"))
        assert words[0] == "/opt/preflight/bin/preflight"
        at = words.index("--hosts")
        words[at : at + 2] = ["--on", "local", "--until", "node", "--select", "NOD", "--expect", "os=plan9"]
        done = run(*words[1:], cwd=tmp_path)
        assert done.returncode == 1, done.stderr
    assert "NOD005" in (tmp_path / "preflight" / "last.html").read_text()
    assert (tmp_path / "preflight" / "failing-hosts").read_text() == "local0\n"
    told = run("history", "--history", f"sqlite:///{tmp_path}/preflight/history.db", cwd=tmp_path)
    assert "2 runs of 1 node" in told.stdout
    served = re.search(r"^    /opt/preflight/bin/preflight serve (.*)$", section, re.MULTILINE)
    assert served is not None
    words = shlex.split(served[1].replace("/var/lib/", f"{tmp_path}/"))
    with serving(*words, cwd=tmp_path) as (url, _):
        page = fetched(url)
        assert "NOD005" in page and "/node/local0" in page and "2</span></h2>" in page


# Runs in a database: two writers, crashes, what is removed, and errors in words.


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
        ("mysql://me:hidden-word@db/x", "'mysql' is not a supported database"),
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


# What many runs show together: each planted story is told, and healthy noise tells none.


#: Seeds that the limits were chosen with, and seeds that they were not.
SEEN, SEALED = (2,), (301,)


def remembered(fleet: Fleet, address: str) -> Past:
    """The runs of a fleet, after a database has had them."""
    database = open_database(address)
    for report in fleet.reports():
        if report.nodes:
            add_run(database, report)
    past = load_past(database)
    database.close()
    return past


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [*SEEN, *SEALED])
def test_twelve_stories_of_500_nodes_in_90_nights(seed: int, tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    planted = twelve(seed)
    fleet = Fleet(seed=seed, stories=tuple(item.story for item in planted))
    reports = list(fleet.reports())
    accounts = []
    for address in (f"sqlite:///{tmp_path}/h.db", new_postgres()):
        database = open_database(address)
        for report in reports:
            add_run(database, report)
        accounts.append(account_of(load_past(database, days=90), ""))
        database.close()
    assert missed_and_false(planted, accounts[0]) == ([], [])
    assert to_json(accounts[0]) == to_json(accounts[1])


@pytest.mark.parametrize("seed", [3, 302])
def test_a_healthy_fleet_has_no_story(seed: int, tmp_path: Path) -> None:
    past = remembered(Fleet(200, 60, seed), f"sqlite:///{tmp_path}/h.db")
    assert account_of(past, "").stories == ()


@pytest.mark.parametrize("size", [1, 2, 4, 9])
def test_small_fleets_have_no_story_by_chance(size: int, tmp_path: Path) -> None:
    past = remembered(Fleet(size, 60, 11 + size), f"sqlite:///{tmp_path}/h.db")
    assert account_of(past, "").stories == ()


@pytest.mark.parametrize("nights", [1, 2, 5])
def test_few_runs_say_nothing(nights: int, tmp_path: Path) -> None:
    def bad(night: int, index: int, sample: Sample) -> None:
        if index == 3:
            sample.gauges["rank_pace"] *= 1 + 0.1 * night

    account = account_of(remembered(Fleet(30, nights, 5, (bad,)), f"sqlite:///{tmp_path}/h.db"), "")
    assert account.stories == () and account.runs == nights


def test_an_empty_history(tmp_path: Path) -> None:
    open_database(f"sqlite:///{tmp_path}/h.db").close()
    account = api.history(f"sqlite:///{tmp_path}/h.db")
    assert (account.runs, account.stories, account.nodes) == (0, (), ())


def test_a_node_that_was_repaired_is_no_story(tmp_path: Path) -> None:
    def for_a_while(night: int, index: int, sample: Sample) -> None:
        if index == 7 and 20 <= night < 32:
            sample.gauges["rank_pace"] *= 1.3
        if index == 8 and 10 <= night < 14:
            sample.failing["GPU004"] = "it was broken, and then repaired"

    past = remembered(Fleet(60, 60, 6, (for_a_while,)), f"sqlite:///{tmp_path}/h.db")
    assert account_of(past, "").stories == ()


def test_what_all_nodes_share_blames_no_node(tmp_path: Path) -> None:
    """The room got warmer at once, and the network slower, for everybody; one model got slower without an update."""

    def shared(night: int, index: int, sample: Sample) -> None:
        if night >= 40:
            sample.gauges["gpu_temperature"] += 9
        if night >= 45 and sample.properties["gpu"].startswith("NVIDIA A100"):
            sample.gauges["rank_pace"] *= 1.2

    stories = account_of(remembered(Fleet(60, 60, 9, (shared,)), f"sqlite:///{tmp_path}/h.db"), "").stories
    assert [(story.kind, len(story.nodes), story.quantities) for story in stories] == [
        ("all-nodes", 24, ("rank_pace",))
    ]


def test_a_run_that_could_not_tell_is_neither_a_failure_nor_health(tmp_path: Path) -> None:
    """A node that is unknown between two failures failed once, and is not healthy."""
    reports = list(Fleet(3, 8, 4, fails=0).reports())
    past = Past()
    database = open_database(f"sqlite:///{tmp_path}/h.db")
    for report in reports:
        add_run(database, report)
    past = load_past(database)
    node = past.nodes[0]
    states = ["failing", "unknown", "failing", "passing", "passing", "unknown", "passing", "passing"]
    from preflight.commands.history.past import Failure
    from preflight.commands.history.stories import health_of

    own = {node: [Failure(run, node, "X", "x", "") for run, state in enumerate(states) if state == "failing"]}
    health = health_of(replace(past, states={node: states}), own)[node]
    assert (health.failures, health.healthy_since, health.mean_time_between_failures_s) == (1, 6, None)


def test_the_account_as_a_document(tmp_path: Path) -> None:
    planted = twelve(2, size=100, nights=60)[:1]
    address = f"sqlite:///{tmp_path}/h.db"
    remembered(Fleet(100, 60, 2, tuple(item.story for item in planted)), address)
    account = api.history(address)
    assert_follows_schema(to_json(account), "history")
    (story,) = account.stories
    assert account.blamed_nodes == story.nodes == planted[0].nodes
    lemon = next(node for node in account.nodes if node.node == story.nodes[0])
    assert lemon.failures >= 10 and lemon.mean_days_between_failures is not None
    assert 3 < lemon.mean_days_between_failures < 8
    other = next(node.node for node in account.nodes if node.node not in story.nodes)
    assert restrict_to(account, {other}).stories == ()
    assert [node.node for node in restrict_to(account, {other}).nodes] == [other]
