"""`preflight diagnose` as a command: what it prints, where, and its exit codes."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from preflight.cli import main
from preflight.commands.diagnose.diagnosis import Answer, Certainty, Diagnosis, LogProcess, Pointer
from preflight.commands.diagnose.diagnosis_text import format_members
from preflight.commands.diagnose.pipeline import diagnose
from preflight.commands.diagnose.scan import Table, load_symptoms
from tests.commands.diagnose.cases import FOLDER, Case, cases
from tests.commands.diagnose.stalling import PROGRAMS

RECORDED = FOLDER / "logs" / "recorded"


def test_the_text_names_rank_line_meaning_remedy_and_check(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(RECORDED / "checkpoint-disk-full")
    assert main.run(["diagnose", "torchrun.log"]) == 1
    said = " ".join(capfd.readouterr().out.split())
    for part in (
        "rank 1 failed first: disk-full",
        "--> torchrun.log:",
        "iostream error",
        "raised at /home/anna/job/train.py:43",
        "means: A file, usually a checkpoint, could not be written completely",
        "do: Free space",
        "CKP012 checkpoint-does-not-fit",
        "rank 0 failed as a consequence",
        "CAUSE NAMED disk-full of rank 1; 1 log",
    ):
        assert part in said


def test_without_a_cause_the_text_names_a_suspect(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diagnose", str(RECORDED / "nodes-stopped")]) == 3
    said = capfd.readouterr().out
    assert "no log gives the reason; check rank 3 on node2 first" in said
    assert "DON'T KNOW" in said


def test_json_is_written_to_a_file_in_addition_to_the_text(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "diagnosis.json"
    log = tmp_path / "run.log"
    log.write_text("step 1 loss 2.5\nstep 2 loss 2.4\nINFO Training completed.\n")
    assert main.run(["diagnose", str(log), "-v", "-o", "text", "-o", f"json:{target}"]) == 0
    assert "COMPLETED" in capfd.readouterr().out
    assert json.loads(target.read_text())["answer"] == "completed"


def test_a_run_without_a_last_word_is_not_called_healthy(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diagnose", str(RECORDED / "torchrun-healthy")]) == 3
    said = " ".join(capfd.readouterr().out.split())
    assert "no line shows that the run failed or completed" in said
    assert "NO END SEEN" in said


def test_the_other_exit_codes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diagnose", str(tmp_path)]) == 4
    assert main.run(["diagnose", str(tmp_path / "absent")]) == 2
    assert main.run(["diagnose", str(tmp_path), "-o", "sarif"]) == 2
    assert "choose from text, json" in capfd.readouterr().err


def test_control_characters_of_a_log_never_reach_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    content = b"[rank1]: CUDA out of memory \x1b]0;gone\x07 \xc2\x9b31m \xe2\x80\xae!\n"
    (tmp_path / "a\x1b]0;x\x07.log").write_bytes(content)
    assert main.run(["diagnose", str(tmp_path), "-v", "--color"]) == 1
    said = capfd.readouterr().out
    assert "\x1b]" not in said
    assert not set("\x07\x9b\u202e") & set(said)


def test_processes_are_folded() -> None:
    ranks = [LogProcess(rank=n) for n in (0, 1, 2, 4, 7)]
    assert format_members(ranks) == "ranks 0-2, 4, 7"
    assert format_members([LogProcess(rank=3, host="b")]) == "rank 3 on b"
    assert (
        format_members([LogProcess(local_rank=1, host="b"), LogProcess(role="server 0")])
        == "local rank 1 on b, server 0"
    )


# Every log gets its cause, its first rank and the check that finds it; logs without a cause get none.


CASES = cases()


@pytest.fixture(scope="module")
def table() -> Table:
    """The symptom tables of the checks."""
    return load_symptoms()


@pytest.fixture(scope="module")
def pointers(table: Table) -> Mapping[str, Pointer]:
    """Every rule and check that a symptom names."""
    return api._pointers({name for row in table.rows for name in row.symptom.found_by})


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_log_gets_its_expected_diagnosis(
    case: Case, table: Table, pointers: Mapping[str, Pointer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.folder)
    found = diagnose(["."], table, lambda _: pointers, version="test")
    if case.healthy:
        expected = (Answer.COMPLETED, 0) if case.completed else (Answer.NO_END, 3)
        assert (found.answer, found.exit_code, found.cause) == (*expected, None)
        assert (found.completion is not None) is case.completed
    elif case.symptom:
        assert_cause(found, case)
    else:
        assert (found.answer, found.cause, found.exit_code) == (Answer.UNKNOWN, None, 3)
        assert (found.suspect.member.rank if found.suspect else None) == case.suspect
        assert found.last_words


def assert_cause(found: Diagnosis, case: Case) -> None:
    """Assert the cause and all properties that the case gives."""
    assert found.cause is not None, found.effects
    cause = found.cause
    # Only the reason itself, or an exception with its place in the program, counts as named.
    is_named = cause.certainty is Certainty.NAMED or (cause.certainty is Certainty.OPEN and bool(cause.frame))
    expected = (Answer.CAUSE, 1) if is_named else (Answer.SUSPECTED, 6)
    assert (cause.symptom, found.answer, found.exit_code) == (case.symptom, *expected)
    first = cause.members[0] if cause.members else None
    assert (first.rank if first else None) == case.rank
    assert (first.host if first else "") == case.host
    assert (first.role if first else "") == case.role
    if case.members:
        assert tuple(member.rank for member in cause.members) == case.members
    assert case.line in cause.line.text
    assert cause.frame.endswith(case.frame)
    assert case.time in cause.line.time
    path, number = cause.line.path, cause.line.line
    assert cause.line.text.strip()[:40] in (case.folder / path).read_text("utf-8", "replace").splitlines()[number - 1]
    told = {pointer.id for pointer in cause.found_by}
    assert set(case.before) <= told
    assert bool(told) == bool(case.before)
    assert found.suspect is None


def test_there_are_enough_logs_of_every_kind() -> None:
    kinds = Counter("healthy" if case.healthy else "cause" if case.symptom else "unknown" for case in CASES)
    assert kinds["cause"] >= 45
    assert kinds["unknown"] + kinds["healthy"] >= 10
    assert Counter(case.origin for case in CASES)["recorded"] >= 40
    folders = {case.folder for case in CASES}
    assert folders == {path for origin in ("recorded", "written") for path in (FOLDER / "logs" / origin).iterdir()}


# Logs that are of no training run, and input that cannot be read, get no cause and never exit code 0.


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
    assert "no sign of a training run: these logs name no launcher, framework or rank" in said
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
    rows = load_symptoms().evidence
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


# Errors that a run survived are no cause, a run without a last word is not called healthy, and data is not a log.


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
END = "INFO Training completed.\n"
REFUSED = "WARNING upload failed: [Errno 104] Connection reset by peer, retrying\n"
ENDED = "srun: error: node1: task 0: Exited with exit code 1\n"


def steps(first: int, last: int, hour: str = "") -> str:
    """Lines of progress, with times if an hour is given."""
    head = f"2026-01-12 {hour}:00:" if hour else ""
    return "".join(f"{head}{f'{n % 60:02d} ' if head else ''}step {n} loss 0.5\n" for n in range(first, last))


def read(folder: Path, *texts: str) -> Diagnosis:
    """The diagnosis of the logs of ranks with these texts."""
    for rank, text in enumerate(texts):
        (folder / f"rank_{rank}.log").write_text(text)
    return api.diagnose([folder])


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder whose name gives no rank."""
    folder = tmp_path / "logs"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "error", [OOM, REFUSED, "NCCL WARN Duplicate GPU detected : rank 0 and rank 1 both on CUDA device\n"]
)
def test_an_error_before_the_end_of_a_completed_run_is_survived(error: str, logs: Path) -> None:
    found = read(logs, steps(1, 5) + error + steps(5, 9) + END)
    assert (found.answer, found.exit_code, found.cause) == (Answer.COMPLETED, 0, None)
    assert found.completion is not None
    assert found.completion.line == 10
    assert len(found.survived) == 1


def test_an_error_that_training_went_on_after_is_no_cause_although_no_end_is_seen(logs: Path) -> None:
    found = read(logs, steps(1, 5) + OOM + steps(5, 9))
    assert (found.answer, found.exit_code, found.cause) == (Answer.NO_END, 3, None)
    assert [effect.symptom for effect in found.survived] == ["gpu-out-of-memory"]


def test_a_failure_after_the_last_step_counts(logs: Path) -> None:
    found = read(logs, steps(1, 50) + OOM)
    assert (found.answer, found.exit_code) == (Answer.CAUSE, 1)


def test_a_failure_after_the_end_counts(logs: Path) -> None:
    found = read(logs, steps(1, 5) + END + "OSError: [Errno 28] No space left on device\n")
    assert found.cause is not None
    assert (found.cause.symptom, found.exit_code) == ("disk-full", 1)


def test_a_batch_script_that_prints_the_end_after_a_crash_proves_nothing(logs: Path) -> None:
    crash = (
        'Traceback (most recent call last):\n  File "/home/anna/train.py", line 7, in <module>\n    go()\nKeyError: 3\n'
    )
    found = read(logs, steps(1, 9) + crash + "Training finished at Mon Jan 12 10:00:00 2026\n")
    assert found.cause is not None
    assert (found.cause.symptom, found.exit_code) == ("uncaught-exception", 1)


def test_steps_of_a_job_that_completed_do_not_hide_the_job_that_failed(logs: Path) -> None:
    rows = "4711 train gpu FAILED 1:0\n4711.batch batch FAILED 1:0\n4711.extern extern COMPLETED 0:0\n"
    assert read(logs, steps(1, 9) + rows).answer is Answer.UNKNOWN
    assert read(logs, steps(1, 9) + "4712 train gpu COMPLETED 0:0\n").answer is Answer.COMPLETED


def test_a_later_cause_takes_the_place_of_a_survived_one(logs: Path) -> None:
    found = read(logs, steps(1, 5) + OOM + steps(5, 9) + "OSError: [Errno 28] No space left on device\n" + ENDED)
    assert found.cause is not None
    assert found.cause.symptom == "disk-full"
    assert [effect.symptom for effect in found.survived] == ["gpu-out-of-memory"]


def test_steps_that_may_come_from_a_buffer_leave_a_cause_suspected(logs: Path) -> None:
    found = read(logs, steps(1, 5) + OOM + steps(5, 9) + ENDED)
    assert found.cause is not None
    assert (found.cause.symptom, found.answer, found.exit_code) == ("gpu-out-of-memory", Answer.SUSPECTED, 6)
    assert "the run may have continued" in " ".join(found.notes)


def test_steps_with_later_times_prove_that_the_run_went_on(logs: Path) -> None:
    found = read(logs, steps(1, 5, "10") + f"2026-01-12 10:00:06 ERROR {OOM}" + steps(5, 9, "12") + ENDED)
    assert (found.answer, found.cause) == (Answer.UNKNOWN, None)
    assert [effect.symptom for effect in found.survived] == ["gpu-out-of-memory"]


def test_an_error_of_one_process_is_not_survived_because_another_completed(logs: Path) -> None:
    found = read(logs, steps(1, 9) + END, steps(1, 4) + OOM)
    assert found.cause is not None
    assert (found.cause.symptom, found.cause.members[0].rank, found.exit_code) == ("gpu-out-of-memory", 1, 1)


def test_numbers_of_watchdogs_are_compared(logs: Path) -> None:
    line = "[rank%d]:[E1] [PG 0 Rank %d] Timeout at NCCL work: 7, last enqueued NCCL work: %d, last completed: 6.\n"
    found = read(logs, *(line % (rank, rank, 7 if rank == 2 else 12) for rank in range(4)))
    assert (found.answer, found.exit_code) == (Answer.UNKNOWN, 3)
    assert found.suspect is not None
    assert found.suspect.member.rank == 2
    assert found.suspect.because == "it is at collective 7, but the others are at 12"


def test_several_missing_ranks_are_named_together(logs: Path) -> None:
    found = read(logs, "HorovodBroadcast_dense [missing ranks: 1, 5]\n")
    assert found.suspect is not None
    assert [found.suspect.member.rank, *(other.rank for other in found.suspect.others)] == [1, 5]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        random.Random(7).randbytes(50_000),
        bytes(range(256)) * 100,
        b"\x7fELF" + bytes(5000),
        gzip.compress(b"step 1 loss 0.5\n" * 1000 + random.Random(8).randbytes(5000))[:3000],
    ],
)
def test_what_cannot_be_read_is_called_unreadable(content: bytes, logs: Path) -> None:
    path = logs / ("run.log.gz" if content.startswith(b"\x1f\x8b") else "run.log")
    path.write_bytes(content)
    found = api.diagnose([path])
    assert (found.answer, found.exit_code) == (Answer.UNREADABLE, 4)


@pytest.mark.parametrize(
    "text", ["Ошибка не найдена\nшаг 1\n" * 50, "训练第 1 步\n" * 50, "Schritt 1: Verlust 0,5 ä ö ü\n" * 50]
)
def test_text_in_other_languages_is_no_binary_data(text: str, logs: Path) -> None:
    assert read(logs, text).answer is Answer.NO_END


# Recorded dumps of four ranks that stall: who is to blame is known, because `stalling.py` made them stall.


SETS: dict[str, dict[str, Any]] = json.loads(
    gzip.decompress((Path(__file__).parent / "dumps" / "stalling.json.gz").read_bytes())
)


def is_sealed(name: str) -> bool:
    """Whether a program is only measured."""
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % 3 == 0


SEEN = [name for name in PROGRAMS if not is_sealed(name)]
SEALED = [name for name in PROGRAMS if is_sealed(name)]


def blamed(name: str, folder: Path) -> tuple[int, ...]:
    """The ranks that a diagnosis of the dumps blames."""
    for rank, dump in SETS[name].items():
        for entry in dump["entries"]:
            entry["process_group"] = tuple(entry["process_group"])
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    cause = api.diagnose([folder]).cause
    return tuple(member.rank for member in cause.members if member.rank is not None) if cause is not None else ()


@pytest.mark.parametrize("name", SEEN)
def test_the_ranks_that_stall_the_others_are_named_and_no_other(name: str, tmp_path: Path) -> None:
    assert blamed(name, tmp_path) == PROGRAMS[name][1]


def test_sealed_programs_name_nobody_who_is_not_to_blame(tmp_path: Path) -> None:
    right = wrong = 0
    for name in SEALED:
        (folder := tmp_path / name).mkdir()
        found = blamed(name, folder)
        right += found == PROGRAMS[name][1]
        wrong += not set(found) <= set(PROGRAMS[name][1])
    print(f"sealed programs: {right} of {len(SEALED)} right, {wrong} blame somebody else")
    assert (right >= 0.75 * len(SEALED), wrong <= 0.125 * len(SEALED)) == (True, True)
