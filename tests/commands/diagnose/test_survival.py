"""Errors that a run survived are no cause, a run without a last word is not called healthy, and data is not a log."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

from preflight import api
from preflight.commands.diagnose.diagnosis import Answer, Diagnosis

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
    assert "the run may have survived it" in " ".join(found.notes)


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
    assert found.suspect.because == "it is at collective 7, the others are at 12"


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
