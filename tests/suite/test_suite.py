"""The test runner's plugins, tested on small suites."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite import alone, unstable
from tests.suite.worker_share import groups_of

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
CONFTEST = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.conftest import pytest_addoption, pytest_collection_modifyitems, pytest_configure, pytest_ignore_collect
"""


def run(folder: Path, tests: str, *options: str) -> tuple[int, str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_it.py").write_text(tests)
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    own["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", str(folder / "base")]
    done = subprocess.run(
        [*command, *options], cwd=folder, env=own, capture_output=True, text=True, timeout=100, check=False
    )
    return done.returncode, done.stderr + done.stdout


ONCE = """\
import pathlib, pytest

@pytest.mark.parametrize("row", range({rows}))
def test_row(row):
    tried = pathlib.Path(__file__).with_name(f"tried-{{row}}")
    first = not tried.exists()
    tried.touch()
    assert not first, f"row {{row}} met a busy machine"

def test_healthy():
    pass
"""


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadgroup")], ids=["one process", "two workers"])
def test_a_failure_that_passes_alone_is_listed_and_the_run_passes(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, text = run(tmp_path, ONCE.format(rows=2), "--rerun-failed", *options)
    assert code == 0, text
    assert "2 unstable" in text and "test_row[0]" in text and "row 0 met a busy machine" in text, text
    assert text.splitlines()[-1] == "1 passed, 0 failed, 2 unstable"


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadgroup")], ids=["one process", "two workers"])
def test_a_failure_that_repeats_fails_the_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    tests = ONCE.format(rows=1) + "\n\ndef test_wrong():\n    assert 1 == 2\n"
    code, text = run(tmp_path, tests, "--rerun-failed", *options)
    assert code == 1, text
    assert text.splitlines()[-1] == "1 passed, 1 failed, 1 unstable"


def test_failures_of_folders_with_their_own_conftest_are_rerun(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "conftest.py").write_text("def pytest_runtest_setup():\n    pass\n")
        (tmp_path / name / f"test_{name}.py").write_text(ONCE.format(rows=1))
    code, text = run(tmp_path, ONCE.format(rows=1), "--rerun-failed")
    assert code == 0, text
    assert text.splitlines()[-1] == "3 passed, 0 failed, 3 unstable"


@pytest.mark.parametrize("options", [(), ("-n", "2", "--dist", "loadgroup")], ids=["one process", "two workers"])
def test_a_module_that_cannot_be_imported_fails_the_run(tmp_path: Path, options: tuple[str, ...]) -> None:
    (tmp_path / "test_broken.py").write_text("import there_is_no_such_module\n\ndef test_it():\n    pass\n")
    code, text = run(tmp_path, ONCE.format(rows=1), "--rerun-failed", *options)
    assert code != 0 and "test_broken.py" in text, text


def test_a_run_that_stops_early_fails(tmp_path: Path) -> None:
    stop = '\n\ndef test_last(request):\n    request.session.shouldfail = "the deadline of the session has passed"\n'
    code, text = run(tmp_path, ONCE.format(rows=1) + stop + "\n\ndef test_unrun():\n    pass\n", "--rerun-failed")
    assert code == 1, text
    assert text.splitlines()[-1] == "2 passed, 1 failed, 0 unstable"


def test_a_second_run_that_crashes_as_it_exits_counts(tmp_path: Path) -> None:
    crash = "if pathlib.Path(__file__).with_name('tried-0').exists():\n    atexit.register(os.abort)\n"
    code, text = run(tmp_path, f"{ONCE.format(rows=1)}\nimport atexit, os\n{crash}", "--rerun-failed")
    assert code == 0 and "the second run ended with exit code -6" in text, text
    assert text.splitlines()[-1] == "1 passed, 0 failed, 1 unstable"


def test_many_failures_are_not_rerun(tmp_path: Path) -> None:
    code, text = run(tmp_path, ONCE.format(rows=unstable.MOST_RERUN + 1), "--rerun-failed")
    assert code == 1, text
    assert text.splitlines()[-1] == f"1 passed, {unstable.MOST_RERUN + 1} failed, 0 unstable"


def test_an_error_of_a_fixture_is_rerun_too(tmp_path: Path) -> None:
    tests = "import pytest\n\n@pytest.fixture\ndef broken():\n    raise OSError\n\ndef test_it(broken):\n    pass\n"
    code, text = run(tmp_path, tests, "--rerun-failed")
    assert code == 1, text
    assert text.splitlines()[-1] == "0 passed, 1 failed, 0 unstable"


def test_thorough_tests_run_with_the_option_only(tmp_path: Path) -> None:
    tests = "import pytest\n\n@pytest.mark.thorough\ndef test_costly():\n    pass\n\ndef test_cheap():\n    pass\n"
    for option, outcome in (("-v", "1 passed, 1 deselected"), ("--thorough", "2 passed")):
        code, text = run(tmp_path, tests, option)
        assert code == 0 and outcome in text, text


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
        own = ("--cpu-report", "5", "--cpu-report-json", str(table))
        code, text = run(tmp_path, COSTLY, *own, *options)
        assert code == 0, text
        costs = {name.partition("::")[2]: cpu_s for name, (cpu_s, _) in json.loads(table.read_text()).items()}
        assert costs["test_costly"] > 1.0 > costs["test_cheap"], costs
        assert re.search(r"^ +\d+\.\d +\d+\.\d +2  test_it\.py$", text, re.MULTILINE), text


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
