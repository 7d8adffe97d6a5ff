"""The kernel's counters of time without a processor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from reference_trainer.common import progress as starvation


def test_throttled_time_is_read_in_both_cgroup_versions(tmp_path: Path) -> None:
    own, root = tmp_path / "cgroup", tmp_path / "fs"
    two = root / "job" / "rank"
    two.mkdir(parents=True)
    (two / "cpu.stat").write_text("usage_usec 5\nnr_throttled 2\nthrottled_usec 2500000\n")
    own.write_text("0::/job/rank\n")
    assert starvation.throttled_s(str(root), str(own)) == 2.5
    one = root / "cpu,cpuacct" / "job"
    one.mkdir(parents=True)
    (one / "cpu.stat").write_text("nr_periods 7\nthrottled_time 1500000000\n")
    own.write_text("4:memory:/x\n3:cpu,cpuacct:/job\n0::/\n")
    assert starvation.throttled_s(str(root), str(own)) == 1.5


def test_container_reads_its_cgroup_at_the_root(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/kubepods/somewhere/else\n")
    (tmp_path / "cpu.stat").write_text("throttled_usec 1000\n")
    assert starvation.throttled_s(str(tmp_path), str(own)) == 0.001


@pytest.mark.parametrize("text", ["", "nonsense\n", "throttled_usec many\n"])
def test_unreadable_counters_give_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.stat").write_text(text)
    assert starvation.throttled_s(str(tmp_path), str(tmp_path / "no")) is None
    (tmp_path / "schedstat").write_text(text)
    assert starvation.waited_s(str(tmp_path / "schedstat")) is None


def test_wait_time_is_the_second_field_of_schedstat(tmp_path: Path) -> None:
    (tmp_path / "schedstat").write_text("30700768 2000000000 24\n")
    assert starvation.waited_s(str(tmp_path / "schedstat")) == 2.0


def test_wait_times_of_threads_are_summed(tmp_path: Path) -> None:
    for thread, text in (("1", "5 1000000000 1\n"), ("2", "5 500000000 1\n")):
        (tmp_path / thread).mkdir()
        (tmp_path / thread / "schedstat").write_text(text)
    assert starvation.threads_waited_s(str(tmp_path)) == 1.5
    (tmp_path / "3").mkdir()
    assert starvation.threads_waited_s(str(tmp_path)) is None
    assert starvation.threads_waited_s(str(tmp_path / "no")) is None


@pytest.mark.thorough
def test_a_thread_that_competes_for_one_processor_is_starved_and_a_sleeping_one_is_not() -> None:
    if starvation.waited_s() is None:
        pytest.skip("this kernel counts no waits")
    one = str(min(os.sched_getaffinity(0)))
    program = f"""
import os, threading, time
from reference_trainer.common.progress import StarvationClock
os.sched_setaffinity(0, {{{one}}})
ends = time.monotonic() + 2.0
if not os.fork():
    while time.monotonic() < ends: pass
    os._exit(0)
clock = StarvationClock()
threading.Thread(target=lambda: [None for _ in iter(lambda: time.monotonic() < ends, False)]).start()
time.sleep(1.0)
print(clock.read())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert float(done.stdout) > 0.1, done.stderr
    sleeping = starvation.StarvationClock()
    threading.Thread(target=time.sleep, args=(0.3,)).start()
    time.sleep(0.3)
    before = time.monotonic()
    assert sleeping.read() is not None and sleeping.read() <= time.monotonic() - before + 0.3  # type: ignore[operator]
