"""Hostile recordings are rejected with a location, and take little memory."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.model.recording import SCHEMA_VERSION
from preflight.model.recording_io import save
from preflight.model.requests import FactRecord, Request
from tests.builders import make_recording

#: By the clock: a gigabyte is unpacked, beside other work.
pytestmark = [pytest.mark.thorough, pytest.mark.timeout(400)]

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


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, "pipe.json"], capture_output=True, text=True, timeout=150, cwd=tmp_path
    )
    assert done.returncode == 2 and "not a regular file" in done.stderr


@pytest.mark.parametrize("text", ["9" * 400, "NaN", "1e999", "[" * 500, "Infinity, -1", 'a\\"9999999999999999999999'])
def test_harmless_lookalike_text_is_read(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recording.json"
    path.write_bytes(rows('{"a": "' + text + '"}'))
    done = subprocess.run([sys.executable, "-c", MEASURE, str(path)], capture_output=True, text=True, timeout=300)
    # It is read, but without a job there is nothing to judge; rejected files give exit code 2.
    assert done.returncode == 4, done.stderr
