"""Logs that are of no training run, and input that cannot be read, get no cause and never exit code 0."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from preflight import api
from preflight.cli import main
from preflight.commands.diagnose.diagnosis import Answer
from preflight.commands.diagnose.scan import known

#: Lines of everyday systems that look like the fault of a training run.
OTHERS = {
    "sshd": "Dec 10 07:01:02 gate sshd[811]: Failed password for root from 203.0.113.7 port 4022 ssh2\n"
    "Dec 10 07:01:03 gate sshd[811]: reverse mapping checking getaddrinfo for a.example [203.0.113.7] failed\n"
    "Dec 10 07:01:04 gate sshd[812]: error: Bind to port 22 on 0.0.0.0 failed: Address already in use.\n",
    "desktop": "Jul  3 16:28:34 book Chat[18]: connectx to 203.0.113.7:8080@0 failed: [51] Network is unreachable\n",
    "database": "2026-11-24 10:00:00 UTC [811] FATAL:  could not open file: Permission denied\n",
    "java": "2026-11-24 10:00:00,123 ERROR [main] App: java.net.NoRouteToHostException: No route to host\n",
    "mail": "Nov 24 10:00:00 mx postfix/smtpd[7]: fatal: bind 0.0.0.0 port 25: Address already in use\n",
    "kernel": "Nov 24 10:00:00 db kernel: Out of memory: Killed process 4711 (httpd) total-vm:1kB\n",
    "web": '203.0.113.7 - - [24/Nov/2026 17:16:55] "GET /nothing HTTP/1.1" 404 -\n',
    "packages": "2026-11-24 08:16:02 status installed libpcre2-32-0:amd64 10.42-1\n",
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_log_of_another_system_gets_no_cause(name: str, tmp_path: Path) -> None:
    (tmp_path / "messages").write_text(OTHERS[name])
    found = api.diagnose([tmp_path])
    assert (found.answer, found.exit_code, found.cause, found.suspect) == (Answer.NO_RUN, 4, None, None)


def test_the_text_says_what_there_is_instead(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "auth.log").write_text(OTHERS["sshd"] * 4 + OTHERS["mail"])
    assert main.run(["diagnose", str(tmp_path)]) == 4
    said = " ".join(capfd.readouterr().out.split())
    assert "no sign of a training run: these logs name no launcher, no framework and no rank" in said
    assert "12 lines: sshd refused or lost a log-in" in said
    assert "1 line: port-already-in-use, if it were a training run" in said
    assert "NO TRAINING RUN; 1 log, 13 lines" in said
    assert "before:" not in said


def test_the_same_lines_count_beside_a_training_run(tmp_path: Path) -> None:
    (tmp_path / "messages").write_text(OTHERS["sshd"] + OTHERS["kernel"].replace("httpd", "python"))
    (tmp_path / "train.log").write_text("step 1 loss 2.5\nstep 2 loss 2.4\n")
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    assert found.cause.symptom == "host-out-of-memory"


def test_a_rank_in_the_name_of_a_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "rank_1.log").write_text("OSError: [Errno 98] Address already in use\n")
    assert api.diagnose([tmp_path]).answer is Answer.CAUSE


def test_every_row_of_evidence_has_a_source_and_a_bounded_pattern() -> None:
    rows = known().evidence
    assert len({row.name for row in rows}) == len(rows) >= 5
    assert all(row.source.startswith("https://") for row in rows)
    assert not [row.name for row in rows if {"*", "+"} & set(row.pattern.pattern.replace("\\*", ""))]


@pytest.mark.parametrize("seed", range(8))
def test_random_bytes_are_never_a_completed_run(seed: int, tmp_path: Path) -> None:
    data = random.Random(seed).randbytes(50_000)
    (tmp_path / "run.log").write_bytes(data)
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x02" + data)
    found = api.diagnose([tmp_path])
    assert (found.answer, found.exit_code, found.cause) == (Answer.UNREADABLE, 4, None)
    assert [log.problem for log in found.logs if not log.problem] == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        gzip.compress(b"step 1 loss 2.5\n" * 9000 + b"Training completed.\n", mtime=0)[:-12],
        b"Training completed.\n" + bytes(5000),
    ],
    ids=["empty", "truncated", "binary"],
)
def test_what_cannot_be_read_to_its_end_is_named(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.log.gz").write_bytes(content)
    found = api.diagnose([tmp_path])
    assert (found.answer, found.exit_code) == (Answer.UNREADABLE, 4)
    assert not content or found.logs[0].problem
