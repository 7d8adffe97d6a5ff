"""Readers on shapes that grow: four times the size must not take much more than four times the work.

Work is counted in calls of functions and operations of C (`sys.setprofile`), which no other load on the machine
changes. Work below a floor does not count; work that a budget ends is bounded."""

from __future__ import annotations

import ast
import gzip
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

import pytest

from preflight import api
from preflight._util import regular_file
from preflight._util.budget import Budget, Limits
from preflight.model.findings import VerdictKind
from preflight.model.recording import SCHEMA_VERSION
from preflight.model.recording_io import save
from preflight.model.requests import FactRecord, Request
from preflight.plugins.registry import sources
from preflight.sources.base import SourceFile
from preflight.sources.discovery.readings import RecognisedFiles, read_source
from preflight.sources.formats.tree import MemoryTree
from tests.builders import make_recording
from tests.hostile.shapes import SHAPES, Shape, plant
from tests.suite import effort
from tests.suite.measured import Measured, measured

SMALL = 150
#: Four times as much, with half as much again for logarithmic growth.
MAX_GROWTH = 6.0
#: Fewer calls take less than about two seconds; quadratic growth below it may be ended by a limit of the reader.
FLOOR = 1_500_000
#: Without a clock: only counted limits may end a reading here.
BUDGET = Limits(seconds_each=1e6, seconds_pool=1e6, seconds_run=1e6)


def _id(shape: Shape) -> str:
    return f"{shape.name}-{shape.id}"


def _calls(shape: Shape, n: int) -> int:
    tree = MemoryTree({shape.name: shape.text(n)})
    file = tree.read(shape.name)
    assert isinstance(file, SourceFile)
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += 1

    with Budget(BUDGET).watched():
        source = RecognisedFiles(tree, tuple(sources())).source_of(file, "")
        if source is None:
            return 0
        # An imported module is no work.
        read_source(source, file, tree, role="script" if source.name == "python" else "")
        fresh = next(type(one)() for one in sources() if one.name == source.name)
        sys.setprofile(count)
        try:
            read_source(fresh, file, tree, role="script" if source.name == "python" else "")
        finally:
            sys.setprofile(None)
    return calls


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("no_gc_callbacks")
@pytest.mark.parametrize("shape", SHAPES, ids=_id)
def test_work_grows_with_the_size(shape: Shape) -> None:
    large = _calls(shape, 4 * SMALL)
    assert large < FLOOR or large / max(1, _calls(shape, SMALL)) < MAX_GROWTH


# Lint of a tree of hostile files takes at most a minute and 512 MiB, and names every unread file.


#: Processor time; wall time depends on the load of the machine.
MAX_SECONDS = 60.0
MAX_BYTES = 512 << 20


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_a_hostile_tree_is_linted_within_its_budget(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    unread = plant(root)
    assert sum(1 for path in root.rglob("*") if not path.is_dir()) >= 300
    done = _lint(root, tmp_path / "report.json")
    # Files that could be read may have findings (exit code 1, else 3); never 5.
    assert done.code in (1, 3), str(done)
    assert done.peak_bytes < MAX_BYTES, str(done)
    assert done.cpu_s < MAX_SECONDS, str(done)
    report = json.loads((tmp_path / "report.json").read_bytes())
    required = [note for job in report["jobs"] for note in job["notes"] if note["required"]]
    assert len(required) >= len(unread)
    noted = [note["span"]["path"] + " " + note["message"] for job in report["jobs"] for note in job["notes"]]
    missing = [path for path in unread if not any(path in said for said in noted)]
    assert not missing
    assert not [said for said in noted if "which is a bug" in said]


def _lint(root: Path, report: Path) -> Measured:
    command = [sys.executable, "-m", "preflight", "lint", root, "--no-cache", "--jobs", "2"]
    return measured([*command, "--output", f"json:{report}"], cwd=root, timeout_s=800)


# Limits of readers: a file beyond a limit is named, and the verdict is incomplete.


_LAUNCH = "mpirun -np 4 python train.py\n"


def _reasons(path: Path) -> str:
    report = api.lint([path], root=path.parent)
    # A finding outranks unread files.
    assert report.verdict in (VerdictKind.INCOMPLETE, VerdictKind.NO_GO)
    return " ".join(outcome.reason for outcome in report.coverage.unknown_outcomes if outcome.required)


def test_directives_of_a_batch_script_beyond_the_limit(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n" + "#PBS -l walltime=1:00\n" * 500 + _LAUNCH)
    assert "directives for the scheduler after the first 400 were not read" in _reasons(script)


def test_value_too_long_to_evaluate(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("#!/bin/bash\n#SBATCH --nodes=2\na=" + "x" * 150_000 + "\nb=$a$a\ntorchrun --nnodes=2 t.py $b\n")
    assert "200000 characters" in _reasons(script)


def test_a_named_script_that_is_not_python(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import torch.distributed as dist\ndist.init_process_group('nccl'\n")
    assert "not Python 3" in _reasons(script)


def test_a_pipe_is_read_up_to_a_limit_and_a_deadline() -> None:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb", buffering=0) as stream:
        os.write(writing, b"x" * 1000)
        assert regular_file.read_pipe(stream, 100, 10) == b"x" * 100
        with pytest.raises(TimeoutError, match=r"not closed within 0\.2 s"):
            regular_file.read_pipe(stream, 100_000, 0.2)
        os.close(writing)


# Every regular expression of preflight on strings that provoke backtracking.


ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("preflight", "checks/preflight_checks", "rules/preflight_rules")
#: Strings repeated before a character that does not match.
PIECES = (
    *("a", "A", "0", " ", "\t", "\n", "-", "_", ".", "/", ":", "=", ",", ";", "#", "@", "$", "\\", "'", '"', "{", "}"),
    *(
        "[",
        "]",
        "(",
        "<",
        "%",
        "{{",
        "{%",
        "${",
        "$(",
        "a ",
        "a.",
        "a=",
        "a,",
        "0.",
        "0,",
        "-a",
        "--a ",
        "a:1,",
        "# ",
        "\n#",
    ),
    *("#SBATCH ", "\n ", "\\\n", " \n", "a\n", "kind:", "- ", "a: ", "def a", "import a\n"),
)
#: The one that the fewest patterns match, in the gate; all of them with `--thorough`.
GATE_TAILS, TAILS = ("\0",), ("", "!", "\0", "\n!")
SIZE = 2_000
#: Cubic is some ten milliseconds here, quadratic a twentieth of one.
PATTERNS_SMALL = 300
SUSPICIOUS_S = 0.002
#: Seconds of CPU time: quadratic is 4 million steps of some ten nanoseconds, cubic is hours.
MAX_S = 0.6


def patterns() -> list[tuple[str, str, int]]:
    """Location, text and flags of every pattern that is a literal in the code."""
    found: list[tuple[str, str, int]] = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or ast.unparse(node.func) != "re.compile":
                    continue
                for first in node.args[:1]:
                    if isinstance(first, ast.Constant) and isinstance(first.value, str):
                        flags = " ".join(
                            ast.unparse(item) for item in (*node.args[1:], *(k.value for k in node.keywords))
                        )
                        value = 0
                        for name, flag in (("I", re.I), ("IGNORECASE", re.I), ("MULTILINE", re.M), ("DOTALL", re.S)):
                            value |= int(flag) if re.search(rf"re\.{name}\b", flags) else 0
                        found.append((f"{path.relative_to(ROOT)}:{node.lineno}", first.value, value))
    return found


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("place", "text", "flags"),
    patterns(),
    ids=lambda value: value if ":" in str(value)[:80] and "/" in str(value) else "",
)
def test_no_pattern_backtracks_for_long(place: str, text: str, flags: int, request: pytest.FixtureRequest) -> None:
    tails = TAILS if request.config.getoption(effort.OPTION) else GATE_TAILS
    pattern = re.compile(text, flags)
    for piece in PIECES:
        for tail in tails:
            # What is at most quadratic takes well under a millisecond at the small size.
            if _spent(pattern, piece * (PATTERNS_SMALL // len(piece)) + tail) < SUSPICIOUS_S:
                continue
            # The minimum of three: load only makes runs slower.
            hostile = piece * (SIZE // len(piece)) + tail
            spent = min(_spent(pattern, hostile) for _ in range(3))
            assert spent < MAX_S, f"{place}: {text!r} takes {spent:.1f} s for {SIZE} times {piece!r} and {tail!r}"


def _spent(pattern: re.Pattern[str], hostile: str) -> float:
    started = time.process_time()
    pattern.search(hostile)
    pattern.fullmatch(hostile)
    return time.process_time() - started


@pytest.mark.thorough
def test_a_cubic_pattern_is_found() -> None:
    assert _spent(re.compile(r"a*a*a*b"), "a" * PATTERNS_SMALL) > 10 * SUSPICIOUS_S


# Hostile recordings are rejected with a location, and take little memory.


#: By the clock: a gigabyte is unpacked, beside other work.

MEASURE = (
    "import sys; from preflight.cli.main import run; code = run(['judge', sys.argv[1]]); "
    "print(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]); sys.exit(code)"
)
RECORDING = replace(make_recording(), facts=(FactRecord(Request("x:y", "node1"), {"a": 1}),))
HEAD = b'{\n"schema_version": %d,' % SCHEMA_VERSION


def rows(value: str) -> bytes:
    """A recording whose first value is this."""
    data = save(RECORDING)
    before, mark, after = data.partition(b'\n"values": [\n')
    assert mark
    first, _, rest = after.partition(b"\n")
    return before + mark + value.encode() + (b"," if first.endswith(b",") else b"") + b"\n" + rest


def one_line(value: str) -> bytes:
    """The same on one line, as another program would write it."""
    text = json.dumps(json.loads(save(RECORDING)))
    return text.replace('"values": [{"a": 1}', f'"values": [{value}', 1).encode()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "huge-integer": lambda: rows('{"a": ' + "9" * 400 + "}"),
    "huge-integer-one-line": lambda: one_line('{"a": ' + "9" * 400 + "}"),
    "infinite": lambda: rows('{"a": 1e999}'),
    "nan": lambda: rows('{"a": NaN}'),
    "infinity": lambda: one_line("-Infinity"),
    "deep": lambda: rows("[" * 100_000 + "]" * 100_000),
    "deep-one-line": lambda: one_line("[" * 100_000 + "]" * 100_000),
    "deep-objects": lambda: rows('{"a":' * 5_000 + "1" + "}" * 5_000),
    "long-text": lambda: HEAD + b'"jobs": ["' + b"x" * 100_000_000,
    "many-items": lambda: HEAD + b'"values": [' + b"[]," * 45_000_000 + b"1]}",
    "many-items-one-line": lambda: b'{"values": [' + b"[]," * 20_000_000 + b"1]}",
    "bomb": lambda: gzip.compress(HEAD + b" " * 700_000_000, 1),
    "not-utf-8": lambda: rows('{"a": "b"}').replace(b'"b"', b'"\xff"'),
}


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_recording_is_rejected_with_a_location(tmp_path: Path, name: str) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(HOSTILE[name]())
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 2, (done.stdout + done.stderr)[-2000:]
    assert "Traceback" not in done.stderr
    assert any(place in done.stderr for place in ("values[0]", "line ", "more than", "the limit")), done.stderr
    assert int(done.stdout.splitlines()[-1]) < 1400 * 1024


@pytest.mark.thorough
@pytest.mark.timeout(400)
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, "pipe.json"], capture_output=True, text=True, timeout=150, cwd=tmp_path
    )
    assert done.returncode == 2 and "not a regular file" in done.stderr


@pytest.mark.thorough
@pytest.mark.timeout(400)
@pytest.mark.parametrize("text", ["9" * 400, "NaN", "1e999", "[" * 500, "Infinity, -1", 'a\\"9999999999999999999999'])
def test_harmless_lookalike_text_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(rows('{"a": "' + text + '"}'))
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, timeout=300)
    # It is read, but without a job there is nothing to judge; rejected files give exit code 2.
    assert done.returncode == 4, done.stderr
