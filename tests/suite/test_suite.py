"""The test runner's plugins, tested on small suites."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.suite import alone
from tests.suite.load import Slowdown
from tests.suite.second_try import FILE, MAX_SECOND_TRIES, MISSES, RUNS, History
from tests.suite.worker_share import groups_of

ROOT = Path(__file__).parents[2]
CONFTEST = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.suite import alone, second_try, worker_share as sharing

def pytest_configure(config):
    for plugin in (sharing, alone, second_try):
        config.pluginmanager.register(plugin)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(second_try.SecondTries())
"""


def run(folder: Path, tests: str, *options: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own |= {FILE: str(folder / "runs.json"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "base")]
    done = subprocess.run(
        [*command, *options], cwd=folder, env=own, capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stdout + done.stderr


ONCE = """\
import pytest
tries = []

@pytest.mark.second_try
@pytest.mark.parametrize("row", range({rows}))
def test_row(row):
    tries.append(row)
    assert tries.count(row) == 2, f"row {{row}} was hidden"

def test_healthy():
    pass
"""


def test_a_missed_fault_is_tried_again_and_both_tries_are_printed(tmp_path: Path) -> None:
    for options in ((), ("-n", "2", "--dist", "loadgroup")):
        (tmp_path / "runs.json").unlink(missing_ok=True)
        code, text = run(tmp_path, ONCE.format(rows=1), *options)
        assert code == 0 and "2 passed" in text, text
        assert "1 tried a second time" in text and "test_row[0]" in text and "row 0 was hidden" in text, text


def test_too_many_second_tries_fail_the_run(tmp_path: Path) -> None:
    for options in ((), ("-n", "2", "--dist", "loadgroup")):
        code, text = run(tmp_path, ONCE.format(rows=MAX_SECOND_TRIES + 1), *options)
        assert (
            code == 1 and f"{MAX_SECOND_TRIES + 2} passed" in text and f"at most {MAX_SECOND_TRIES} are noise" in text
        ), text


def test_only_marked_tests_get_a_second_try(tmp_path: Path) -> None:
    tests = """\
import pytest
tries = []

@pytest.mark.second_try
def test_row():
    assert False, "missed"

def test_healthy():
    tries.append(1)
    assert len(tries) == 2
"""
    code, text = run(tmp_path, tests)
    assert code == 1 and "2 failed" in text, text
    assert "1 tried a second time" in text


def test_a_row_that_misses_twice_in_its_last_runs_fails(tmp_path: Path) -> None:
    code, text = run(tmp_path, ONCE.format(rows=1))
    assert code == 0, text
    code, text = run(tmp_path, ONCE.format(rows=1))
    assert code == 1 and "2 passed" in text, text
    assert "test_row[0]: missed 2 times in its last 2 runs (xx)" in text, text


def test_misses_long_ago_and_of_other_rows_do_not_count(tmp_path: Path) -> None:
    history = History(tmp_path / "folder" / "runs.json")
    assert MISSES == 2
    assert history.add({"row": False, "other": True}) == {}
    for _ in range(RUNS - 1):
        assert history.add({"row": True, "other": True}) == {}
    assert history.add({"row": False, "other": False}) == {}
    assert history.add({"row": True}) == {}
    assert history.add({"row": False}) == {"row": "." * (RUNS - 3) + "x.x"}


def test_a_damaged_history_is_restarted(tmp_path: Path) -> None:
    path = tmp_path / "runs.json"
    for text in ("", "{", "[]"):
        path.write_text(text)
        assert History(path).add({"row": False}) == {}
        assert json.loads(path.read_text()) == {"row": "x"}


SHARED = """\
import os, pytest

@pytest.fixture(scope="module")
def made(tmp_path_factory):
    with (tmp_path_factory.getbasetemp().parent / "made").open("a") as file:
        file.write(__name__ + " " + os.environ["PYTEST_XDIST_WORKER"] + chr(10))

@pytest.mark.parametrize("number", range(25))
def test_it(made, number):
    pass
"""


def test_module_fixtures_run_once_and_workers_share_files(tmp_path: Path) -> None:
    for name in ("test_a.py", "test_b.py", "test_fault_matrix.py"):
        (tmp_path / name).write_text(SHARED)
    code, text = run(tmp_path, SHARED, "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    assert code == 0 and "100 passed" in text, text
    made = [line.split() for line in (tmp_path / "base" / "made").read_text().splitlines()]
    assert sorted(name for name, _ in made if name != "test_fault_matrix") == ["test_a", "test_b", "test_it"]
    assert len({worker for _, worker in made}) == 2


def test_rows_of_the_matrix_are_grouped_by_tens() -> None:
    rows = [f"a/test_fault_matrix.py::test_it[{number}]" for number in range(25)]
    found = groups_of([*rows, "a/test_x.py::test_it[a::b]", "a/test_x.py::TestIt::test_it"])
    assert [found[row][-2:] for row in rows] == ["-0"] * 10 + ["-1"] * 10 + ["-2"] * 5
    assert [group for group in found.values() if group == "a/test_x.py"] == ["a/test_x.py"] * 2


LOCKED = """\
import os, pathlib, pytest, time

@pytest.fixture
def here(tmp_path_factory, request):
    folder = tmp_path_factory.getbasetemp().parent / "running"
    folder.mkdir(exist_ok=True)
    mine = folder / request.node.name
    mine.touch()
    yield lambda: {path.name for path in folder.iterdir()} - {mine.name}
    mine.unlink()

def while_alone(here):
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        yield here()

@pytest.mark.alone
@pytest.mark.parametrize("number", range(3))
def test_alone(here, number):
    assert set().union(*while_alone(here)) == set()

@pytest.mark.parametrize("number", range(40))
def test_others(here, number):
    assert not any("alone" in name for seen in while_alone(here) for name in seen)
"""


def test_an_exclusive_test_runs_alone(tmp_path: Path) -> None:
    code, text = run(tmp_path, LOCKED.replace("0.3", "0.03"), "-n", "3", "--dist", "load")
    assert code == 0 and re.search(r"43 passed", text), text


COSTLY = """\
import subprocess, sys

BURN = "import time\\nwhile time.process_time() < 1: pass"

def test_costly():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_cheap():
    pass
"""


def test_cpu_time_of_child_processes_is_counted_for_their_file(tmp_path: Path) -> None:
    for options in ((), ("-n", "2", "--dist", "loadgroup")):
        table = tmp_path / "times.json"
        own = ("-p", "tests.suite.cpu_report", "--cpu-report", "5", "--cpu-report-json", str(table))
        code, text = run(tmp_path, COSTLY, *own, *options)
        assert code == 0, text
        costs = {name.partition("::")[2]: cpu_s for name, (cpu_s, _) in json.loads(table.read_text()).items()}
        assert costs["test_costly"] > 1.0 > costs["test_cheap"], costs
        assert re.search(r"^ +\d+\.\d +\d+\.\d +2  test_it\.py$", text, re.MULTILINE), text


def test_a_busy_machine_has_a_higher_factor() -> None:
    burn = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(burn) for _ in range(3 * len(os.sched_getaffinity(0)))]
    try:
        with Slowdown() as slow:
            time.sleep(3)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert slow.factor > 1.5


def test_a_lock_that_is_never_released_is_named(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    with path.open("a+") as held, path.open("a+") as wanted:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("tests/test_it.py::test_hangs")
        held.flush()
        with pytest.raises(
            TimeoutError, match=r"machine was locked for 0.1 s; last locked by tests/test_it.py::test_hangs"
        ):
            alone.lock(wanted, fcntl.LOCK_SH, longest_s=0.1)
        fcntl.flock(held, fcntl.LOCK_UN)
        alone.lock(wanted, fcntl.LOCK_EX, longest_s=0.1)
