"""The manner in which these tests are run, tried on small suites of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.suite.second_try import MOST
from tests.suite.sharing import groups_of

ROOT = Path(__file__).parents[2]
CONFTEST = f"""\
import sys
sys.path.insert(0, {str(ROOT)!r})
from tests.suite import alone, second_try, sharing

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


def test_a_missed_fault_is_tried_again_and_both_are_told(tmp_path: Path) -> None:
    for options in ((), ("-n", "2", "--dist", "loadgroup")):
        code, text = run(tmp_path, ONCE.format(rows=1), *options)
        assert code == 0 and "2 passed" in text, text
        assert "1 tried a second time" in text and "test_row[0]" in text and "row 0 was hidden" in text, text


def test_too_many_second_tries_fail_the_run(tmp_path: Path) -> None:
    for options in ((), ("-n", "2", "--dist", "loadgroup")):
        code, text = run(tmp_path, ONCE.format(rows=MOST + 1), *options)
        assert code == 1 and f"{MOST + 2} passed" in text and "noise does not explain that" in text, text


def test_what_fails_twice_fails_and_what_has_no_mark_gets_no_second_try(tmp_path: Path) -> None:
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


def test_what_a_file_shares_is_made_once_and_workers_share_the_files(tmp_path: Path) -> None:
    for name in ("test_a.py", "test_b.py", "test_fault_matrix.py"):
        (tmp_path / name).write_text(SHARED)
    code, text = run(tmp_path, SHARED, "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    assert code == 0 and "100 passed" in text, text
    made = [line.split() for line in (tmp_path / "base" / "made").read_text().splitlines()]
    assert sorted(name for name, _ in made if name != "test_fault_matrix") == ["test_a", "test_b", "test_it"]
    assert len({worker for _, worker in made}) == 2


def test_rows_of_the_matrix_stay_together_by_tens() -> None:
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


def test_a_test_that_must_be_alone_is_and_gets_its_turn(tmp_path: Path) -> None:
    code, text = run(tmp_path, LOCKED.replace("0.3", "0.03"), "-n", "3", "--dist", "load")
    assert code == 0 and re.search(r"43 passed", text), text
