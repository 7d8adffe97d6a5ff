"""Hangs are explained from dumps of torch's Flight Recorder, stacks of py-spy and NCCL's RAS output.

The dumps in `dumps/` were recorded with torch 2.13.0 over Gloo by `hanging.py`; only paths were replaced.
"""

from __future__ import annotations

import json
import os
import pickle
import pickletools
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight import api
from preflight.cli import main
from preflight.commands.diagnose import flight_recorder, hangs
from preflight.commands.diagnose.diagnosis import Answer, Diagnosis
from preflight.commands.diagnose.flight_recorder import Call as Collective
from preflight.commands.diagnose.flight_recorder import Dump, read_dump
from preflight.commands.diagnose.hangs import Hang, find_hang

HERE = Path(__file__).parent
DUMPS = HERE / "dumps"


def lines_with(text: str) -> set[int]:
    """The numbers of the lines of the hanging program that contain a text."""
    return {number for number, line in enumerate((HERE / "hanging.py").read_text().splitlines(), 1) if text in line}


def line_of(found: Diagnosis) -> int:
    assert found.cause is not None
    path, _, number = found.cause.frame.rpartition(":")
    assert path == "/home/anna/train.py"
    return int(number)


# --- Flight Recorder ---


@pytest.mark.parametrize(
    ("mode", "symptom", "ranks", "answer", "statement", "rule"),
    [
        ("missing", "rank-missing-in-collective", [1], Answer.SUSPECTED, "dist.all_reduce(tensor)", "TRN001"),
        ("order", "collective-order-differs", [1], Answer.CAUSE, "dist.all_reduce(tensor)", "TRN002"),
        ("other", "ranks-in-different-collectives", [1], Answer.CAUSE, "dist.barrier()", "TRN002"),
        ("group", "ranks-in-different-collectives", [0], Answer.CAUSE, "group=pair", "TRN002"),
        ("sizes", "collective-sizes-differ", [2], Answer.CAUSE, "dist.broadcast(torch.ones(8", "BAT023"),
    ],
)
def test_a_recorded_hang_is_explained(
    mode: str, symptom: str, ranks: list[int], answer: Answer, statement: str, rule: str
) -> None:
    found = api.diagnose([DUMPS / mode])
    assert found.cause is not None
    assert found.cause.symptom == symptom
    assert found.answer is answer
    assert [member.rank for member in found.cause.members] == ranks
    assert line_of(found) in lines_with(statement)
    assert rule in {pointer.id for pointer in found.cause.found_by}
    assert "collective 4 of group default_pg" in found.cause.line.text
    said = "\n".join(found.cause.evidence)
    assert all(f"rank {rank}" in said or f"{rank}" in said for rank in range(3))


def test_ranks_that_wait_and_those_that_do_not_are_told_apart() -> None:
    found = api.diagnose([DUMPS / "missing"])
    assert found.cause is not None
    assert found.cause.line.text == (
        "rank 1 did not reach collective 4 of group default_pg, all_reduce, in which ranks 0, 2 wait"
    )
    first, second = found.cause.evidence
    assert first.startswith("rank 1: left all_reduce of [4] Float, collective 3 of group default_pg, at ")
    assert second.startswith("ranks 0, 2: in all_reduce of [4] Float, collective 4 of group default_pg, at ")


def test_json_dumps_say_the_same_without_places(tmp_path: Path) -> None:
    for path in (DUMPS / "missing").glob("*.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    assert (found.cause.symptom, found.cause.frame) == ("rank-missing-in-collective", "")
    assert len(found.logs) == 3


def test_a_rank_without_a_dump_is_missing(tmp_path: Path) -> None:
    for rank in (0, 2):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes((DUMPS / "missing" / f"nccl_trace_rank_{rank}").read_bytes())
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    assert found.cause.members[0].rank == 1
    assert "rank 1: no dump" in found.cause.evidence


def call(group: str, sequence: int, *, is_finished: bool) -> Collective:
    return Collective(group, "", sequence, "all_reduce", "[4]", "Float", is_finished, "train.py:9")


def test_a_rank_that_left_a_dump_comes_before_one_whose_dump_is_lost() -> None:
    waits = (call("0", 4, is_finished=True), call("0", 5, is_finished=False))
    dumps = [
        Dump(0, "rank_0", waits, {"0": (0, 1, 2)}),
        Dump(1, "rank_1", (call("0", 4, is_finished=True),), {"0": (0, 1, 2)}),
    ]
    found = find_hang(dumps)
    assert found is not None and found.ranks == (1,) and "rank 1 did not reach collective 5" in found.text
    found = find_hang(dumps[:1])
    assert found is not None and found.ranks == (1, 2) and "left no dump, and may be why" in found.text


def test_a_rank_is_known_from_the_groups_in_its_dump() -> None:
    groups = {"0": {"ranks": "[0, 1, 2, 3]"}, "1": {"ranks": "[1, 3]"}, "2": {"ranks": "[2, 3]"}}
    dump = read_dump(json.dumps({"entries": [], "pg_config": groups}).encode(), 7, "x")
    assert dump is not None and dump.rank == 3
    del groups["2"]
    dump = read_dump(json.dumps({"entries": [], "pg_config": groups}).encode(), 1, "x")
    assert dump is not None and dump.rank == 1


@pytest.mark.parametrize("name", ["_dump_{}", "trace.{}.json", "node-a-{}"])
def test_a_rank_is_known_from_a_number_at_the_end_of_a_name(name: str, tmp_path: Path) -> None:
    for rank in range(3):
        (tmp_path / name.format(rank)).write_bytes((DUMPS / "missing" / f"nccl_trace_rank_{rank}").read_bytes())
    found = api.diagnose([tmp_path])
    assert found.cause is not None and [member.rank for member in found.cause.members] == [1]


def entry(group: str, sequence: int, pair: str = "", *, is_finished: bool = False) -> dict[str, Any]:
    """A call as torch writes it; `pair` is `send 0->1` of a point-to-point call."""
    return {
        "record_id": 900,
        "pg_id": int(group),
        "process_group": (group, f"group {group}"),
        "p2p_seq_id" if pair else "collective_seq_id": sequence,
        "profiling_name": f"nccl:{pair or 'all_reduce'}",
        "retired": is_finished,
        "is_p2p": bool(pair),
    }


def hang_of(
    groups: dict[str, list[int]],
    calls: dict[int, list[dict[str, Any]]],
    reached: dict[int, dict[str, tuple[int, int]]] | None = None,
) -> Hang | None:
    """The hang of ranks with these groups, calls, and last entered and finished collectives of each group."""
    dumps = []
    for rank, entries in calls.items():
        own = {name: {"ranks": str(ranks)} for name, ranks in groups.items() if rank in ranks}
        status = {
            name: {"last_enqueued_collective": entered, "last_completed_collective": finished}
            for name, (entered, finished) in (reached or {}).get(rank, {}).items()
        }
        document = {"entries": entries, "pg_config": own, "pg_status": status}
        dump = read_dump(json.dumps(document).encode(), rank, f"rank_{rank}")
        assert dump is not None
        dumps.append(dump)
    return find_hang(dumps)


def test_a_rank_that_alone_does_not_finish_a_collective_is_stuck() -> None:
    calls = {
        0: [entry("0", 8)],
        1: [entry("0", 5), entry("0", 6), entry("0", 7), entry("0", 8)],
        2: [entry("0", 8)],
    }
    found = hang_of({"0": [0, 1, 2]}, calls)
    assert found is not None and (found.kind, found.ranks) == ("stuck", (1,))
    assert "rank 1 did not finish collective 5 of group group 0, all_reduce, which others" in found.text


def test_a_rank_whose_dump_is_empty_is_told_by_the_counts_in_it() -> None:
    calls = {0: [entry("0", 8)], 1: [], 2: [entry("0", 8)], 3: []}
    reached = {1: {"0": (7, 7)}, 3: {"0": (8, 8)}}
    found = hang_of({"0": [0, 1, 2, 3]}, calls, reached)
    assert found is not None and (found.kind, found.ranks) == ("missing", (1,))


def test_a_rank_that_waits_for_another_one_is_not_to_blame() -> None:
    # Rank 2 is missing in group 1, because it waits in group 2 for rank 3, which is in no collective.
    calls = {0: [entry("1", 5)], 1: [entry("1", 5)], 2: [entry("2", 9)], 3: []}
    reached = {2: {"1": (4, 4), "2": (9, 8)}, 3: {"2": (8, 8)}}
    found = hang_of({"1": [0, 1, 2], "2": [2, 3]}, calls, reached)
    assert found is not None and found.ranks == (3,)


def test_a_rank_that_waits_for_a_message_is_not_to_blame() -> None:
    # Two stages of a pipeline: rank 2 waits for a message of rank 0, and rank 3 for rank 2 in their group.
    calls = {0: [], 1: [entry("1", 5)], 2: [entry("3", 7, "recv 1<-0")], 3: [entry("2", 6)]}
    groups = {"1": [0, 1], "2": [2, 3], "3": [0, 2], "4": [1, 3]}
    found = hang_of(groups, calls, {0: {"1": (4, 4)}, 2: {"2": (5, 5)}})
    assert found is not None and (found.kind, found.ranks) == ("missing", (0,))
    calls = {0: [], 2: [entry("3", 7, "recv 1<-0")]}
    found = hang_of({"3": [0, 2], "0": [0, 1, 2]}, calls)
    assert found is not None and found.ranks == (0,)
    assert found.text == "rank 0 did not reach the recv 1<-0 that rank 2 waits in"


def test_messages_that_both_sides_know_of_accuse_nobody() -> None:
    calls = {0: [entry("3", 7, "send 0->1")], 2: [entry("3", 7, "recv 1<-0")]}
    assert hang_of({"3": [0, 2]}, calls) is None


def test_ranks_that_wait_for_each_other_are_not_told_apart() -> None:
    calls = {0: [entry("1", 5)], 1: [entry("2", 9)], 2: [entry("1", 5), entry("2", 9)]}
    reached = {0: {"1": (5, 4), "2": (8, 8)}, 1: {"1": (4, 4), "2": (9, 8)}}
    found = hang_of({"1": [0, 1, 2], "2": [0, 1, 2]}, calls, reached)
    assert found is not None and (found.kind, found.ranks) == ("other", (0, 1))
    assert found.text.startswith("ranks 0-1 wait for each other, and the dumps do not show which rank is at fault: ")


def test_a_group_whose_calls_the_dump_no_longer_holds_accuses_nobody() -> None:
    calls = {0: [entry("0", 8)], 1: [entry("1", 3, is_finished=True)]}
    assert hang_of({"0": [0, 1], "1": [1, 2]}, calls) is None


def test_ranks_without_a_dump_are_named(tmp_path: Path) -> None:
    for rank in range(2):
        name = f"nccl_trace_rank_{rank}"
        document = flight_recorder.load_pickle((DUMPS / "missing" / name).read_bytes())
        document["pg_config"] = {"0": {"ranks": "[0, 1, 2, 3, 4]"}}
        (tmp_path / name).write_bytes(pickle.dumps(document, protocol=2))
    found = api.diagnose([tmp_path])
    assert found.cause is not None and [member.rank for member in found.cause.members] == [1]
    assert "ranks 2-4 left no dump" in found.notes


def test_the_newest_calls_of_a_long_dump_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "MAX_CALLS", 2)
    entries = [
        {"collective_seq_id": n, "profiling_name": "gloo:all_reduce", "process_group": ["0", ""]} for n in range(9)
    ]
    dump = read_dump(json.dumps({"version": "2.10", "entries": entries}).encode(), 0, "x")
    assert dump is not None and [each.sequence for each in dump.calls] == [7, 8]


def test_a_rank_that_computes_in_a_wrapper_is_in_no_collective() -> None:
    text = (
        'Process 7: python train.py\nPython v3.11.7 (/usr/bin/python3)\n\nThread 7 (active): "MainThread"\n'
        "    forward (torch/nn/modules/linear.py:125)\n"
        "    forward (torch/distributed/fsdp/fully_sharded_data_parallel.py:854)\n"
        "    <module> (train.py:30)\n"
    )
    stack = hangs.read_stack(text, 0, "x")
    assert stack is not None and stack.collective == "" and stack.place == "train.py:30"


def test_a_named_cause_in_a_log_comes_first(tmp_path: Path) -> None:
    for path in (DUMPS / "missing").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "rank_1.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    assert (found.cause.symptom, found.answer) == ("gpu-out-of-memory", Answer.CAUSE)
    assert "rank 1 did not reach collective 4" in "\n".join(found.cause.evidence)


def test_dumps_of_a_run_that_goes_on_name_nothing(tmp_path: Path) -> None:
    for rank in range(3):
        document = json.loads((DUMPS / "missing" / f"nccl_trace_rank_{rank}.json").read_bytes())
        document["entries"] = document["entries"][:3]
        (tmp_path / f"nccl_trace_rank_{rank}.json").write_text(json.dumps(document))
    assert api.diagnose([tmp_path]).cause is None


def test_the_text_shows_each_rank(capfd: pytest.CaptureFixture[str]) -> None:
    assert main.run(["diagnose", str(DUMPS / "order")]) == 1
    said = " ".join(capfd.readouterr().out.split())
    assert "rank 1 is out of step: collective-order-differs" in said
    assert "collective 4 of group default_pg is all_reduce on rank 1, but broadcast on the others" in said
    assert "CAUSE NAMED" in said


@pytest.mark.thorough
def test_torch_writes_dumps_that_are_explained(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("MASTER_", "RANK", "WORLD_"))}
    command = [sys.executable, "-W", "ignore", str(HERE / "hanging.py"), "other", str(tmp_path), str(port)]
    subprocess.run(command, env=environment, timeout=240, check=False, capture_output=True)
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    assert found.cause.symptom == "ranks-in-different-collectives"
    path, _, number = found.cause.frame.rpartition(":")
    assert Path(path).name == "hanging.py"
    assert int(number) in lines_with("dist.barrier()")


# --- hostile dumps ---


class Call:
    """An object whose pickle calls a function."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (os.mkdir, ("called",))


def test_a_pickle_that_calls_something_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [Call()]}))
    found = api.diagnose([tmp_path / "nccl_trace_rank_0"])
    assert (found.answer, found.exit_code) == (Answer.UNREADABLE, 4)
    assert "builds more than plain containers" in found.logs[0].problem
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_containers_of_every_protocol_are_read(protocol: int) -> None:
    shared = ["x", 1, -7, 1 << 70, 2.5, None, True, False]
    value = {"a": shared, "b": (shared, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "c": {}, "d": [[]] * 3}
    data = pickle.dumps(value, protocol)
    if protocol == 0:
        # Text form: constants are written as numbers that only the original reader tells from integers.
        assert flight_recorder.load_pickle(data)["c"] == {}
    else:
        assert flight_recorder.load_pickle(data) == value


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02",
        b"\x80\x02.",
        b"\x80\x02]r\xff\xff\xff\x7fj\xff\xff\xff\x7e.",
        b"\x80\x02e.",
        b"\x80\x02}K\x01u.",
        b"\x80\x02(K\x01K\x02",
        b"\x80\x02X\xff\xff\xff\x7fabc.",
        b"\x80\x05\x8d\xff\xff\xff\xff\xff\xff\xff\x7fabc.",
        b"\x80\x02K\x01K\x02a.",
        b"\x80\x02}]K\x01s.",
    ],
)
def test_a_damaged_pickle_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        flight_recorder.load_pickle(data)


@pytest.mark.timeout(60)
def test_a_pickle_that_refers_to_itself_is_read_in_bounded_time() -> None:
    # A list of lists of lists, each twice in the next: 2^60 elements if they were copied.
    data = b"\x80\x02]q\x00" + b"".join(b"]q%c(h%ch%ce" % (n + 1, n, n) for n in range(60)) + b"."
    assert len(flight_recorder.load_pickle(data)) == 2
    assert read_dump(data[:-1] + b"}X\x07\x00\x00\x00entriesh\x3cs.", 0, "x") is not None


@pytest.mark.timeout(60)
def test_containers_within_containers_take_no_time() -> None:
    # Tuples of tuples, each twice in the next: their text, and their hash as a key, would be endless.
    nested = b"".join(b"h%ch%c\x86q%c" % (n, n, n + 1) for n in range(60))
    head = b"\x80\x02K\x01q\x00" + nested
    with pytest.raises(ValueError, match="damaged"):
        flight_recorder.load_pickle(head + b"}h\x3cK\x01s.")
    entry = b"(X\x0d\x00\x00\x00process_groupq\x50]h\x3caX\x11\x00\x00\x00collective_seq_idK\x01"
    entry += b"X\x0e\x00\x00\x00profiling_nameX\x06\x00\x00\x00gloo:xd"
    found = read_dump(head + b"}X\x07\x00\x00\x00entries]" + entry + b"as.", 0, "x")
    assert found is not None
    assert [(call.group, call.operation) for call in found.calls] == [("", "x")]


def test_numbers_without_bound_are_ignored() -> None:
    entry = {"collective_seq_id": 1 << 100_000, "profiling_name": "gloo:x", "retired": False}
    small = {"collective_seq_id": 1, "profiling_name": "gloo:x", "input_sizes": [[1 << 100_000, 4]]}
    small["frames"] = [{"filename": "a.py", "line": 1 << 100_000}]
    dump = read_dump(pickle.dumps({"entries": [entry, small]}), 0, "x")
    assert dump is not None
    assert [(call.shapes, call.place) for call in dump.calls] == [("[4]", "")]


def test_long_pickles_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flight_recorder, "MAX_INSTRUCTIONS", 100)
    with pytest.raises(ValueError, match="more than 100 instructions"):
        flight_recorder.load_pickle(pickle.dumps([[] for _ in range(100)]))


def test_a_dump_of_other_types_is_read_without_harm() -> None:
    entries: list[Any] = [None, 7, {}, {"collective_seq_id": True, "profiling_name": "x"}]
    entries += [{"collective_seq_id": 1, "profiling_name": 3}, {"collective_seq_id": 1, "profiling_name": "gloo:x"}]
    entries[-1] |= {"input_sizes": [["a"], 3], "input_dtypes": 4, "frames": [1, {"filename": 2}], "process_group": 9}
    found = read_dump(pickle.dumps({"entries": entries, "pg_config": {"0": 3, "1": {"ranks": [1, "x"]}}}), 0, "x")
    assert found is not None
    assert [call.operation for call in found.calls] == ["x"]
    assert found.groups == {"1": (1,)}
    assert read_dump(b'{"entries": 3}', 0, "x") is None
    with pytest.raises(ValueError, match="invalid JSON"):
        read_dump(b'{"entries": ' + b"[" * 100_000, 0, "x")


def test_instructions_of_the_recorded_dumps_are_those_of_containers() -> None:
    names = {code.name for code, _, _ in pickletools.genops((DUMPS / "order" / "nccl_trace_rank_0").read_bytes())}
    assert not names & {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD", "INST", "OBJ", "NEWOBJ"}


# --- stacks ---

STACK = """Process {pid}: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 0x7F21 (idle): "Thread-1"
    wait (threading.py:331)
Thread {pid} (active): "MainThread"
{frames}
"""


def write_stacks(folder: Path, frames: dict[int, str]) -> None:
    for rank, text in frames.items():
        (folder / f"py-spy-rank_{rank}.txt").write_text(STACK.format(pid=4700 + rank, frames=text))


WAITING = """    all_reduce (torch/distributed/distributed_c10d.py:2806)
    wrapper (torch/distributed/c10d_logger.py:83)
    step (/home/anna/train.py:55)
    <module> (/home/anna/train.py:90)"""
LOADING = """    read (/home/anna/data.py:17)
    __next__ (torch/utils/data/dataloader.py:701)
    <module> (/home/anna/train.py:88)"""


def test_stacks_show_which_rank_is_in_no_collective(tmp_path: Path) -> None:
    write_stacks(tmp_path, {0: WAITING, 1: WAITING, 2: LOADING})
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    assert (found.cause.symptom, found.cause.members[0].rank) == ("rank-missing-in-collective", 2)
    assert found.cause.frame == "/home/anna/data.py:17"
    assert "rank 0: in all_reduce, called at /home/anna/train.py:55 (step)" in found.cause.evidence


def test_stacks_show_different_collectives(tmp_path: Path) -> None:
    write_stacks(tmp_path, {0: WAITING, 1: WAITING.replace("all_reduce", "barrier").replace(":55", ":61"), 2: WAITING})
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    assert (found.cause.symptom, found.cause.frame) == ("ranks-in-different-collectives", "/home/anna/train.py:61")


# --- NCCL RAS ---


def test_ras_names_the_rank_that_is_behind(tmp_path: Path) -> None:
    (tmp_path / "ras.txt").write_text(
        "Group     Comms      Nodes     Ranks     Ranks     Ranks   Status  Errors\n"
        "    0         1          2         4         8         8  RUNNING  MISMATCH\n\nWarnings\n========\n\n"
        "#0-0 (78db921d1c117b4a) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  7 ranks have launched up to operation 64\n"
        "  Rank 7 has launched up to operation 60 -- GPU 3 managed by process 1650386 on node node1\n"
    )
    found = api.diagnose([tmp_path])
    assert found.cause is None
    assert found.suspect is not None
    assert found.suspect.member.rank == 7


def test_ras_names_the_process_that_is_lost(tmp_path: Path) -> None:
    (tmp_path / "ras.txt").write_text(
        "Errors\n======\n\nDEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
        "  Process 3487984 on node 172.16.64.213 managing GPU 5\n"
    )
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    assert (found.cause.symptom, found.cause.members[0].host) == ("ras-process-lost", "172.16.64.213")
    assert found.answer is Answer.SUSPECTED


# --- preflight's own events ---


def test_what_preflight_reported_before_is_joined(tmp_path: Path) -> None:
    finding = {"id": "MEM001", "name": "x", "message": "rank 3 needs 91 GiB, its GPU has 80 GiB", "suppressed_by": ""}
    events = [
        {"schema_version": 1, "type": "run-began", "time": "2026-11-24T10:00:00Z", "elapsed_s": 0, "verb": "check"},
        {"schema_version": 1, "type": "finding", "time": "2026-11-24T10:00:01Z", "elapsed_s": 1, "finding": finding},
    ]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    (tmp_path / "rank_3.log").write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n")
    found = api.diagnose([tmp_path])
    assert found.cause is not None
    (said,) = found.cause.evidence
    assert said.startswith("preflight reported MEM001 beforehand: rank 3 needs 91 GiB")
