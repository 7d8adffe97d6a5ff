"""Processes of runs among others, and unused shared memory among used segments."""

from __future__ import annotations

import json
import mmap
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from preflight_checks.probes import leftovers as probe
from preflight_checks.probes.leftovers import classify, leftovers, locks, python_target

PROGRAMS = ("train.py", "pkg.train")


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["python3", "train.py", "--x"], ("program", "train.py")),
        (["/opt/env/bin/python3.11", "-u", "-X", "dev", "/job/train.py"], ("program", "train.py")),
        (["python", "-m", "pkg.train"], ("program", "pkg.train")),
        (["python", "-m", "torch.distributed.run", "train.py"], ("launcher", "torchrun")),
        (["/env/bin/python", "/env/bin/torchrun", "train.py"], ("launcher", "torchrun")),
        (["orted", "-mca", "ess"], ("launcher", "mpirun")),
        (["python", "-c", "from multiprocessing.spawn import spawn_main; spawn_main()"], ("worker", "multiprocessing")),
        (["vim", "train.py"], None),
        (["tail", "-f", "train.py.log"], None),
        (["python", "other.py", "train.py"], None),
        (["python"], None),
        (["bash", "run.sh"], None),
    ],
)
def test_classification_of_command_lines(words: list[str], kind: tuple[str, str] | None) -> None:
    assert classify(words, PROGRAMS) == kind


def test_a_server_is_recognized_by_its_role() -> None:
    assert classify(["python", "train.py"], PROGRAMS, "PSERVER") == ("server", "train.py")
    assert classify(["python", "train.py", "--role=pserver"], PROGRAMS) == ("server", "train.py")


def test_options_of_python_are_skipped() -> None:
    assert python_target(["python", "-W", "ignore", "-u", "a.py", "-m", "b"]) == "a.py"
    assert python_target(["python", "-m"]) is None


def test_a_process_of_an_earlier_run_is_found_with_its_port_and_state(tmp_path: Path) -> None:
    script = tmp_path / "train_of_an_earlier_run.py"
    script.write_text(
        "import socket, sys\ns = socket.create_server(('127.0.0.1', 0))\n"
        "print(s.getsockname()[1], flush=True)\nsys.stdin.read()\n"
    )
    command, around = [sys.executable, str(script)], {**os.environ, "TRAINING_ROLE": "PSERVER"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=around) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        try:
            seen = _observed_by_unrelated_process(script.name, port)
            assert (seen["what"], seen["ports"], seen["own"]) == ("server", [port], True)
            child.send_signal(signal.SIGSTOP)
            assert _observed_by_unrelated_process(script.name, port)["state"] == "T"
        finally:
            child.kill()


def _observed_by_unrelated_process(name: str, port: int) -> dict[str, object]:
    """The fact of a probe in its own process, which is not related to the others here."""
    code = (
        "import json, sys, dataclasses\n"
        "from preflight_checks.probes.leftovers import leftovers\n"
        f"seen = leftovers({{'programs': [{name!r}], 'ports': [{port}]}})\n"
        f"print(json.dumps([dataclasses.asdict(p) for p in seen.processes if p.name == {name!r}]))"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    around = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=around, capture_output=True, check=True, text=True, timeout=30)
    (found,) = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_processes_of_this_run_are_skipped() -> None:
    seen = leftovers({"programs": [Path(sys.argv[0]).name], "ports": []})
    assert os.getpid() not in {process.pid for process in seen.processes}


def test_processes_of_the_head_are_skipped() -> None:
    def entry(parent: int, *words: str) -> probe.Entry:
        return probe.Entry(list(words), parent, "S", "me", True, 1.0, 0.0)

    table = {
        10: entry(1, "bash"),
        11: entry(10, "python", "-m", "preflight", "check", "run.sh"),
        12: entry(11, "mpirun", "-np", "1"),
        13: entry(12, "python3", "-c", "agent"),
        14: entry(11, "mpirun", "-np", "1", "-host", "node2"),
        15: entry(10, "mpirun", "python", "train.py"),
    }
    assert probe._relatives(table, 13) == {10, 11, 12, 13, 14}
    assert probe._relatives({**table, 11: entry(10, "/usr/bin/preflight", "check")}, 13) == {10, 11, 12, 13, 14}


def test_segments_of_dead_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SHM", str(tmp_path))
    for name in ("torch_4194301_1_0", f"torch_{os.getpid()}_1_0", "nccl-AbCdEf", "somebody-elses"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    os.utime(tmp_path / "nccl-AbCdEf", (time.time() - 500, time.time() - 500))
    seen = leftovers({"programs": [], "ports": []})
    found = {(segment.name, segment.of) for segment in seen.segments}
    assert found == {("torch_4194301_1_0", "torch"), ("nccl-AbCdEf", "NCCL")}
    assert max(segment.age_s for segment in seen.segments) >= 500


def test_a_mapped_segment_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SHM", str(tmp_path))
    (tmp_path / "psm_abc").write_bytes(b"x" * 4096)
    with (tmp_path / "psm_abc").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert leftovers({"programs": [], "ports": []}).segments == []
    monkeypatch.setattr(probe, "MAPS_DEADLINE_S", -1.0)
    assert leftovers({"programs": [], "ports": []}).segments == [], "without an answer nothing is called unused"


def test_locks_in_the_folder_of_extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "[odd]"))
    assert locks({}) == []
    (tmp_path / "[odd]" / "py311" / "op").mkdir(parents=True)
    lock = tmp_path / "[odd]" / "py311" / "op" / "lock"
    lock.write_text("")
    os.utime(lock, (time.time() - 900, time.time() - 900))
    (found,) = locks({})
    assert found.path == str(lock) and found.age_s >= 900


def test_without_proc_nothing_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "PROC", str(tmp_path))
    monkeypatch.setattr(probe, "SHM", str(tmp_path / "absent"))
    seen = leftovers({"programs": ["train.py"], "ports": []})
    assert seen.processes == [] and seen.shm_total_bytes is None
