"""Logs of any kind: compressed, damaged, binary, endless lines, escapes; tags and times of many forms."""

from __future__ import annotations

import gzip
import io
import random
import tracemalloc
from pathlib import Path

import pytest

from preflight import api
from preflight._util.usage_error import UsageError
from preflight.commands.diagnose.diagnosis import Answer, Diagnosis, LogProcess
from preflight.commands.diagnose.log_lines import (
    common_tagging,
    member_of_file,
    moment_in,
    ranks_by_number,
    seconds_between,
)

OOM = b"[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


def read(path: Path, content: bytes) -> Diagnosis:
    """The diagnosis of a file with this content."""
    path.write_bytes(content)
    return api.diagnose([path])


def assert_out_of_memory(found: Diagnosis, line: int) -> None:
    """Assert that rank 3 was out of memory, in this line."""
    assert found.cause is not None
    assert (found.cause.symptom, found.cause.members) == ("gpu-out-of-memory", (LogProcess(rank=3),))
    assert found.cause.line.line == line


# --- bytes ---


def test_compressed_logs_are_read(tmp_path: Path) -> None:
    assert_out_of_memory(read(tmp_path / "run.log.gz", gzip.compress(b"step 1\n" + OOM)), 2)


def test_the_readable_part_of_a_damaged_archive_is_read(tmp_path: Path) -> None:
    noise = random.Random(1).randbytes(200_000)
    whole = gzip.compress(OOM + noise)
    found = read(tmp_path / "run.log.gz", whole[: len(whole) // 2])
    assert_out_of_memory(found, 1)
    assert "damaged" in found.logs[0].problem
    assert found.notes


def test_binary_data_and_broken_text_are_harmless(tmp_path: Path) -> None:
    noise = bytes(range(256)) * 400 + random.Random(2).randbytes(300_000)
    assert_out_of_memory(read(tmp_path / "run.log", noise.replace(b"\n", b"") + b"\n" + OOM + b"\xff\xfe"), 2)


def test_escapes_and_carriage_returns_are_removed(tmp_path: Path) -> None:
    bar = b"".join(b"\r %d%%|###   | %d/100 [00:01<00:09]" % (n, n) for n in range(100))
    found = read(tmp_path / "run.log", bar + b"\r\x1b[31m" + OOM.rstrip() + b"\x1b[0m\r\n")
    assert_out_of_memory(found, 1)
    assert found.cause is not None
    assert "\x1b" not in found.cause.line.text


def test_a_line_without_an_end_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    with path.open("wb") as stream:
        stream.write(OOM)
        for _ in range(24):
            stream.write(b"x" * (1 << 20))
    tracemalloc.start()
    found = api.diagnose([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert_out_of_memory(found, 1)
    assert peak < 16 << 20


@pytest.mark.thorough
def test_a_long_log_is_read_in_bounded_memory_and_its_lines_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    line = b"[rank%d]: step %d connection reset by peer, retrying\n"
    with path.open("wb") as stream:
        for n in range(12_000):
            stream.write(line % (n, n) if n % 2 == 0 else b"[rank%d]: step %d loss 2.5\n" % (n % 8, n))
        stream.write(OOM)
    tracemalloc.start()
    found = api.diagnose([path])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Each line belongs to another rank: more than are kept, and the cause is not among the dropped ones.
    assert_out_of_memory(found, 12_001)
    assert peak < 32 << 20


def test_a_traceback_across_chunks_stays_complete(tmp_path: Path) -> None:
    head = b'Traceback (most recent call last):\n  File "/home/anna/train.py", line 7, in <module>\n    go()\n'
    for more in range(-120, 20, 20):
        filler = b"step 1 loss 2.5\n" * ((1 << 16) + 1)
        content = filler[: (1 << 20) + more].rpartition(b"\n")[0] + b"\n" + head + b"KeyError: 'x'\n"
        found = read(tmp_path / "run.log", content)
        assert found.cause is not None
        assert (found.cause.symptom, found.cause.frame) == ("uncaught-exception", "/home/anna/train.py:7")
        assert found.cause.line.line == content.count(b"\n")


# --- secrets and control characters ---


def test_secrets_are_hidden_and_nothing_reaches_the_terminal(tmp_path: Path) -> None:
    token = "hf_" + "a1B2" * 8
    found = read(
        tmp_path / "run.log", f"ValueError: bad\n[rank3]: CUDA out of memory HF_TOKEN={token} \u202e\x9b31m".encode()
    )
    assert found.cause is not None
    assert token not in found.cause.line.text
    assert "\x9b" not in found.cause.line.text


# --- what is read ---


def test_only_the_logs_of_a_folder_are_read(tmp_path: Path) -> None:
    (tmp_path / "rank_3.log").write_bytes(OOM)
    (tmp_path / "model.safetensors").write_bytes(b"CUDA out of memory")
    (tmp_path / "train.py").write_bytes(b"raise ValueError\n")
    (tmp_path / ".hidden.log").write_bytes(OOM)
    (tmp_path / "link.log").symlink_to(tmp_path / "rank_3.log")
    assert [Path(log.path).name for log in api.diagnose([tmp_path]).logs] == ["rank_3.log"]


def test_standard_input_and_paths_that_cannot_be_read(tmp_path: Path) -> None:
    found = api.diagnose(["-"], given=io.BytesIO(OOM))
    assert_out_of_memory(found, 1)
    assert found.logs[0].path == "standard input"
    with pytest.raises(UsageError, match="name the logs of a run"):
        api.diagnose([tmp_path / "absent"])
    (tmp_path / "empty.log").touch()
    assert api.diagnose([tmp_path]).answer is Answer.UNREADABLE


# --- who ---


@pytest.mark.parametrize(
    ("line", "member", "rest"),
    [
        ("[default3]:[rank3]: boom", LogProcess(rank=3, local_rank=3), "boom"),
        ("[1,3]<stderr>:boom", LogProcess(rank=3), "boom"),
        ("[prterun-node1-77@1,5]<stdout>: boom", LogProcess(rank=5), "boom"),
        ("Sun Nov 22 07:16:21 2026[1,1]<stderr>:boom", LogProcess(rank=1), "boom"),
        ("[trainer2]:boom", LogProcess(local_rank=2, role="trainer"), "boom"),
        ("[pod/job-worker-1/main] boom", LogProcess(host="job-worker-1", role="worker 1"), "boom"),
        ("(Train pid=7, ip=10.0.0.2) boom", LogProcess(host="10.0.0.2", role="Train"), "boom"),
        ("worker-1  | boom", LogProcess(host="worker-1", role="worker 1"), "boom"),
        ("[E ProcessGroupNCCL.cpp:1] [PG 0 (default_pg) Rank 6] boom", LogProcess(rank=6), None),
        ("n1:812:900 [0] NCCL INFO x", LogProcess(host="n1"), None),
        ("a plain line", LogProcess(), "a plain line"),
    ],
)
def test_tags_identify_the_writer_of_a_line(line: str, member: LogProcess, rest: str | None) -> None:
    found, _, text = common_tagging([line]).split(line)
    assert found == member
    assert text == (rest if rest is not None else line)


@pytest.mark.parametrize(
    ("tag", "member"),
    [("{n}: ", LogProcess(rank=2)), ("[{n}] ", LogProcess(rank=2)), ("node{n}: ", LogProcess(host="node2"))],
)
def test_ambiguous_tags_count_if_most_lines_have_them(tag: str, member: LogProcess) -> None:
    sample = [tag.format(n=n % 3) + f"step {n}" for n in range(30)]
    assert common_tagging(sample).split(tag.format(n=2) + "boom")[0] == member
    assert common_tagging(["plain"] * 30).split(tag.format(n=2) + "boom")[0] == LogProcess()


@pytest.mark.parametrize(
    ("path", "member"),
    [
        ("logs/7/attempt_0/3/stderr.log", LogProcess(local_rank=3)),
        ("logs/node7/x/attempt_1/0/stdout.log", LogProcess(local_rank=0, host="node7")),
        ("log/workerlog.3", LogProcess(rank=3)),
        ("log/serverlog.1", LogProcess(role="server 1")),
        ("out/1/rank.5/stderr", LogProcess(rank=5)),
        ("rank_12.log.gz", LogProcess(rank=12)),
        ("local_rank_2.txt", LogProcess(local_rank=2)),
        ("pserver.0.log", LogProcess(role="server 0")),
        ("trainer-4.log", LogProcess(rank=4)),
        ("train-worker-2.txt", LogProcess(host="train-worker-2", role="worker 2")),
        ("gpu-07/console.log", LogProcess(host="gpu-07")),
        ("slurm-4711.out", LogProcess()),
        ("lora_rank_8/rank_1.log", LogProcess(rank=1)),
    ],
)
def test_file_names_identify_their_process(path: str, member: LogProcess) -> None:
    assert member_of_file(path) == member


def test_numbered_files_are_ranks_only_if_no_number_is_missing() -> None:
    assert ranks_by_number(["a/out.0.log", "a/out.1.log"]) == {
        "a/out.0.log": LogProcess(rank=0),
        "a/out.1.log": LogProcess(rank=1),
    }
    assert ranks_by_number(["a/out.0.log", "a/out.2.log", "slurm-4711.out"]) == {}


# --- when ---


@pytest.mark.parametrize(
    ("text", "seconds", "zoned"),
    [
        ("2026-01-02 03:04:05,678 INFO x", 97445.678, False),
        ("2026-01-02T03:04:05Z x", 97445, True),
        ("2026-01-02T05:04:05.5+02:00 x", 97445.5, True),
        ("  time      : 2026-01-02_03:04:05", 97445, False),
        ("[2026/01/02 03:04:05] ppcls INFO: x", 97445, False),
        ("01/02/2026 03:04:05 - INFO - x", 97445, False),
        ("I0102 03:04:05.678901  2211 init.cc:88] x", 97445.678901, False),
        ("[rank0]:[E102 03:04:05.715298746 ProcessGroupNCCL.cpp:607] x", 97445, False),
        ("Jan  2 03:04:05 gpu-12 kernel: x", 97445, False),
    ],
)
def test_times_in_many_formats_are_read(text: str, seconds: float, zoned: bool) -> None:
    found = moment_in(text)
    assert found is not None
    assert found.seconds == pytest.approx(seconds)
    assert found.zoned is zoned


@pytest.mark.parametrize("text", ["step 12:30 of 99", "2026-13-40 03:04:05", "I9942 03:04:05 x", "version 10.2.3"])
def test_other_numbers_are_not_times(text: str) -> None:
    assert moment_in(text) is None


def test_times_are_compared_over_new_year_and_not_across_kinds() -> None:
    old, new, zoned = map(moment_in, ("2026-12-31 23:59:58 x", "2027-01-01 00:00:02 x", "2026-12-31T23:59:58Z x"))
    assert seconds_between(old, new) == pytest.approx(4)
    assert seconds_between(new, old) == pytest.approx(-4)
    assert seconds_between(old, zoned) is None
    assert seconds_between(None, old) is None
