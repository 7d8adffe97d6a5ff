"""The machine, its activity and its scratch folders: recorded files of other machines, and this one."""

from __future__ import annotations

import io
import json
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from preflight.agent.process import stat_lines
from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import devices
from preflight_checks.probes import environment as environment_probe
from preflight_checks.probes import leftovers as kernel_log
from preflight_checks.probes import leftovers as leftovers_probe
from preflight_checks.probes import leftovers as maintenance
from preflight_checks.probes import machine as clock_probe
from preflight_checks.probes import machine as probe
from preflight_checks.probes.devices import INTERVAL_S, activity, belongs_to_check
from preflight_checks.probes.environment import environment, keyed_hash, nccl_files, parse_settings, split_secrets
from preflight_checks.probes.folders import hub_model, scratch, select_folder
from preflight_checks.probes.leftovers import (
    SlurmNode,
    classify,
    cloud_events,
    detect_cloud,
    leftovers,
    locks,
    parse_aws,
    parse_azure,
    parse_reservations,
    parse_scheduled_shutdown,
    parse_slurm_nodes,
    python_target,
    signs,
    slurm_plans,
    sum_up,
)
from preflight_checks.probes.limits import Cgroups, cgroups, parse_mounts, unescape_path
from preflight_checks.probes.machine import (
    NumaNode,
    clock,
    governors,
    leap_status,
    logind_settings,
    machine,
    numa_nodes,
    parse_cpuinfo,
    parse_meminfo,
    parse_os_release,
    parse_timex,
    running_daemons,
)

X86 = "processor\t: 0\nmodel name\t: Intel(R) Xeon(R)  CPU @ 2.20GHz\nphysical id\t: 0\nflags\t\t: fpu hypervisor sse\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\n"
POWER = "processor\t: 0\ncpu\t\t: POWER9, altivec supported\n"


def put(base: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (base / name).parent.mkdir(parents=True, exist_ok=True)
        (base / name).write_text(text)
    return str(base)


def test_processors_of_several_kinds() -> None:
    two = parse_cpuinfo(X86 + "\n" + X86.replace("physical id\t: 0", "physical id\t: 1"))
    assert (two.model, two.sockets, two.virtual) == ("Intel(R) Xeon(R) CPU @ 2.20GHz", 2, True)
    assert parse_cpuinfo(ARM).model == "" and not parse_cpuinfo(ARM).virtual
    assert parse_cpuinfo(POWER).model == "POWER9, altivec supported"
    assert parse_cpuinfo("").sockets is None
    assert two.features == ["fpu", "hypervisor", "sse"]
    assert parse_cpuinfo(ARM + "Features\t: sve fp\n").features == ["fp", "sve"]


def test_memory_and_distribution() -> None:
    found = parse_meminfo("MemTotal:  1000 kB\nMemAvailable: 10 kB\nHugePages_Total: 0\nSwapTotal: 5 kB\nbroken\n")
    assert (found.total_bytes, found.available_bytes, found.swap_total_bytes, found.swap_free_bytes) == (
        *(1024000, 10240, 5120),
        None,
    )
    assert parse_os_release('NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="22.04"\n') == "ubuntu 22.04"
    assert parse_os_release("") == ""


def test_memory_nodes_and_governors(tmp_path: Path) -> None:
    node, cpu = "devices/system/node/node{}/{}", "devices/system/cpu/cpu{}/cpufreq/scaling_governor"
    base = put(
        tmp_path,
        {
            node.format(0, "meminfo"): "Node 0 MemTotal:  100 kB\nNode 0 MemFree: 1 kB\n",
            node.format(0, "cpulist"): "0-3,8\n",
            node.format(1, "meminfo"): "",
            cpu.format(0): "performance\n",
            cpu.format(1): "performance\n",
            cpu.format(2): "powersave\n",
            "devices/system/cpu/cpuidle/x": "",
        },
    )
    assert numa_nodes(base) == [NumaNode(0, 5, 102400), NumaNode(1, 0, None)]
    assert governors(base) == {"performance": 2, "powersave": 1}
    assert numa_nodes(str(tmp_path / "none")) == [] and governors(str(tmp_path / "none")) == {}


def test_settings_of_logind(tmp_path: Path) -> None:
    base = put(
        tmp_path,
        {
            "systemd/logind.conf": "[Login]\n#KillUserProcesses=yes\nRemoveIPC=no\n",
            "systemd/logind.conf.d/site.conf": "[Login]\nKillUserProcesses=yes\n",
        },
    )
    assert logind_settings(base) == {"RemoveIPC": "no", "KillUserProcesses": "yes"}


def test_a_machine_that_reports_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROC", "SYS", "ETC"):
        monkeypatch.setattr(probe, name, str(tmp_path))
    seen = machine({})
    assert seen.memory.total_bytes is None and seen.online_cpus is None and seen.governors == {} and seen.kernel


def test_this_machine() -> None:
    seen = machine({})
    assert seen.memory.total_bytes and seen.online_cpus


def test_processes_of_the_check_itself() -> None:
    # 1 - 10 (sshd) - 20 (a session) - 30 (agent) - 40 (this probe); 50 below the agent; 60 another session's.
    parents = {10: 1, 20: 10, 30: 20, 40: 30, 50: 30, 60: 10, 70: 60}
    own = {pid for pid in parents if belongs_to_check(pid, lambda at: parents.get(at, 0), 40, 30)}
    assert own == {10, 20, 30, 40, 50}


def test_activity_of_this_machine() -> None:
    seen = activity({})
    assert seen.load is not None and seen.cores and all(busy.pid for busy in seen.heavy)


@pytest.mark.thorough
@pytest.mark.parametrize(("since_s", "paused"), [(1.2 * INTERVAL_S, False), (0.0, True)])
def test_a_recent_snapshot_is_the_first_of_two(since_s: float, paused: bool) -> None:
    stat_lines()
    time.sleep(since_s)
    looks = activity.looks({})  # type: ignore[attr-defined]
    pause = next(looks)
    assert pause > 0.0 if paused else pause == 0.0


def test_which_variable_chooses_a_folder() -> None:
    assert select_folder("temporary", {"TMPDIR": "/a", "TMP": "/b"}) == ("TMPDIR", "/a")
    assert select_folder("temporary", {}) == ("", "/tmp")
    assert select_folder("triton", {"TRITON_HOME": "/t"}) == ("TRITON_HOME", "/t/.triton/cache")
    assert select_folder("hub", {"HF_HOME": "/h"}) == ("HF_HOME", "/h/hub")


def test_a_missing_temporary_folder_has_a_substitute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", "/nowhere/at/all")
    seen = scratch({"what": "temporary"})
    assert seen.variable == "TMPDIR" and not seen.folder.exists and seen.instead


def test_a_home_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOME", raising=False)
    assert not scratch({"what": "home"}).folder.exists


def test_models_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    absent = hub_model({"model": "a/b"})
    assert absent.offline and absent.variable == "HF_HUB_OFFLINE" and absent.revisions == []
    put(tmp_path / "models--a--b", {"snapshots/abc/x": "", "refs/main": "abc\n"})
    there = hub_model({"model": "a/b"})
    assert (there.revisions, there.main) == (["abc"], "abc")


# Control groups of both versions, nested, in containers, and absent, in folders like those of the kernel.


class Tree:
    """A made-up /proc/self and its hierarchies, below one folder."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.mounts: list[str] = ["21 1 8:1 / / rw - ext4 /dev/sda1 rw"]
        self.groups: list[str] = []

    def v2(self, group: str, *, root: str = "/") -> None:
        self.mounts.append(f"30 21 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate")
        self.groups.append(f"0::{group}")

    def v1(self, controllers: str, group: str, *, root: str = "/") -> None:
        self.mounts.append(f"33 31 0:30 {root} /sys/fs/cgroup/{controllers} rw - cgroup cgroup rw,{controllers}")
        self.groups.append(f"{len(self.groups) + 2}:{controllers}:{group}")

    def write(self, path: str, text: str) -> None:
        file = self.base / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def read(self) -> Cgroups:
        self.write("/proc/self/cgroup", "\n".join(self.groups))
        self.write("/proc/self/mountinfo", "\n".join(self.mounts))
        return cgroups(str(self.base / "proc"), str(self.base))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_the_tightest_of_all_groups_above_counts(tree: Tree) -> None:
    tree.v2("/kubepods.slice/pod1/box")
    tree.write("/sys/fs/cgroup/kubepods.slice/cpu.max", "6400000 100000")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/cpu.max", "200000 100000")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/cpu.stat", "usage_usec 9\nnr_periods 200\nnr_throttled 50")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/box/cpu.max", "max 100000")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/box/memory.max", "34359738368")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/box/memory.current", "1000")
    tree.write("/sys/fs/cgroup/kubepods.slice/pod1/memory.max", "max")
    tree.write("/sys/fs/cgroup/kubepods.slice/pids.max", "1024")
    tree.write("/sys/fs/cgroup/kubepods.slice/pids.current", "77")
    seen = tree.read()
    assert seen.versions == "v2"
    assert seen.cpu_quota_cores == 2.0 and seen.cpu_quota_at.endswith("pod1") and seen.throttled == 0.25
    assert seen.memory_limit_bytes == 34359738368 and seen.memory_used_bytes == 1000
    assert seen.processes_limit == 1024 and seen.processes_used == 77


def test_version_1_and_its_unlimited_value(tree: Tree) -> None:
    tree.v1("cpu,cpuacct", "/slurm/job_1/step_0")
    tree.v1("memory", "/slurm/job_1/step_0")
    tree.v1("pids", "/slurm")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/slurm/job_1/step_0/cpu.cfs_quota_us", "-1")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/slurm/job_1/cpu.cfs_quota_us", "20000")
    tree.write("/sys/fs/cgroup/cpu,cpuacct/slurm/job_1/cpu.cfs_period_us", "100000")
    tree.write("/sys/fs/cgroup/memory/slurm/job_1/step_0/memory.limit_in_bytes", "9223372036854771712")
    tree.write("/sys/fs/cgroup/memory/slurm/job_1/memory.limit_in_bytes", "4096")
    tree.write("/sys/fs/cgroup/memory/slurm/job_1/memory.usage_in_bytes", "1024")
    tree.write("/sys/fs/cgroup/pids/slurm/pids.max", "max")
    seen = tree.read()
    assert seen.versions == "v1" and seen.cpu_quota_cores == pytest.approx(0.2)
    assert seen.memory_limit_bytes == 4096 and seen.memory_used_bytes == 1024
    assert seen.processes_limit is None and seen.processes_limit_at == ""


def test_both_versions_side_by_side(tree: Tree) -> None:
    tree.v1("cpu", "/a")
    tree.v2("/b")
    tree.write("/sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "400000")
    tree.write("/sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000")
    tree.write("/sys/fs/cgroup/b/cpu.max", "300000 100000")
    seen = tree.read()
    assert seen.versions == "v1+v2" and seen.cpu_quota_cores == 3.0


def test_a_container_without_its_own_namespace_sees_the_mount(tree: Tree) -> None:
    tree.v1("memory", "/docker/abc", root="/docker/abc")
    tree.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "2048")
    assert tree.read().memory_limit_bytes == 2048


def test_a_group_outside_the_mount_uses_the_mount_point(tree: Tree) -> None:
    tree.v2("/../../other")
    tree.write("/sys/fs/cgroup/memory.max", "512")
    tree.write("/other/memory.max", "1")
    assert tree.read().memory_limit_bytes == 512


def test_missing_groups_and_malformed_values_are_not_limits(tree: Tree) -> None:
    assert tree.read() == Cgroups()
    tree.v2("/x")
    tree.write("/sys/fs/cgroup/x/cpu.max", "lots")
    tree.write("/sys/fs/cgroup/x/memory.max", "")
    assert tree.read() == Cgroups("v2")


def test_blanks_in_mount_points() -> None:
    assert unescape_path("/a\\040b") == "/a b"
    (mount,) = parse_mounts("1 2 0:1 / /a\\040b rw - cgroup2 none rw")
    assert mount.point == "/a b" and mount.controllers == ()


def test_this_machine_answers() -> None:
    assert cgroups().versions in ("", "v1", "v2", "v1+v2")


# The state of a clock from the kernel and chronyd, from recorded outputs and from this machine.


TRACKING = """\
Reference ID    : A9FEA97B (169.254.169.123)
Stratum         : 4
System time     : 0.000004310 seconds slow of NTP time
Last offset     : -0.000003120 seconds
Leap status     : Normal
"""
LOST = """\
Reference ID    : 00000000 ()
Stratum         : 0
System time     : 2.500000000 seconds fast of NTP time
Leap status     : Not synchronised
"""


def test_output_of_chronyd() -> None:
    assert leap_status(TRACKING) == "Normal" and leap_status(LOST) == "Not synchronised"
    assert leap_status("506 Cannot talk to daemon\n") == leap_status("") == ""


def timex(status: int) -> bytes:
    return struct.pack("=i4xqqqqi", 0, 0, -3 * 65536, 16_000, 250, status).ljust(208, b"\0")


def test_state_of_the_kernels_clock() -> None:
    assert parse_timex(timex(0x2001)) and not parse_timex(timex(0x0040))


def test_a_refused_kernel_query_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> bool:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(clock_probe, "is_synchronised", refused)
    seen = clock({})
    assert seen.synchronised is None and seen.problem == "Operation not permitted"


def test_daemons_are_recognized_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("systemd", "systemd-timesyn", "chronyd", "bash", "a) (ntpd")
    lines = {pid: f"{pid} ({name}) S 1 1 1 0".encode() for pid, name in enumerate(names)}
    monkeypatch.setattr(clock_probe, "stat_lines", lambda recent_s: lines)
    assert running_daemons() == ["chronyd", "systemd-timesyncd"]
    monkeypatch.setattr(clock_probe, "stat_lines", lambda recent_s: {})
    assert running_daemons() == []


def test_clock_this_machine_answers() -> None:
    seen = clock({})
    assert seen.synchronised is not None or seen.problem


# Kernel messages of the driver, from recorded lines, a made-up journal and a made-up buffer.


FALLEN = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
LINES = [
    (90.0, FALLEN),
    (30.0, "kernel: NVRM: Xid (PCI:0000:3B:00): 79, pid=1, GPU has fallen off the bus."),
    (5.0, "NVRM: Xid (0000:03:00): 31, Ch 0000000b, engmask 00000120, intr 10000000"),
    (None, "nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 12028, Non-fatal, Link 32 egress non-posted PRIV error (First)"),
    (1.0, "NVRM: GPU 0000:3b:00.0: RmInitAdapter failed! (0x24:0xffff:1220)"),
]


def test_messages_are_counted_by_code_and_device() -> None:
    found = [(c.kind, c.code, c.pci, c.count, c.last_age_s) for c in sum_up(LINES)]
    assert found == [
        ("sxid", 12028, "0000:c4:00.0", 1, None),
        ("xid", 31, "0000:03:00.0", 1, 5.0),
        ("xid", 79, "0000:3b:00.0", 2, 30.0),
    ]
    assert sum_up(LINES)[0].text.startswith("Non-fatal, Link 32")


def tool(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str = "journalctl") -> None:
    """Put a command of this name first on PATH."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_the_journal_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool(tmp_path, monkeypatch, f'echo "1000.5 node kernel: {FALLEN}"')
    log = kernel_log.kernel_log({})
    assert (log.source, [c.code for c in log.complaints]) == ("journalctl --dmesg", [79])
    assert (log.complaints[0].last_age_s or 0) > 1e9


def test_a_journal_without_this_boot_is_ignored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool(tmp_path, monkeypatch, "exit 1")
    buffer = tmp_path / "kmsg"
    buffer.write_text(f"4,1,1000000,-;{FALLEN}\n")
    monkeypatch.setattr(kernel_log, "KMSG", str(buffer))
    log = kernel_log.kernel_log({})
    assert (log.source, [c.code for c in log.complaints]) == (str(buffer), [79])


def test_no_readable_log_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hint = "Hint: You are currently not seeing messages from other users and the system."
    tool(tmp_path, monkeypatch, f"echo '{hint}' >&2; exit 1")
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "absent"))
    with pytest.raises(ProbeUnavailable) as nothing:
        kernel_log.kernel_log({})
    assert nothing.value.kind == "denied" and "absent" in nothing.value.reason


def test_a_hanging_journal_is_abandoned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool(tmp_path, monkeypatch, "sleep 30")
    monkeypatch.setattr(kernel_log, "TOOL_S", 0.2)
    monkeypatch.setattr(kernel_log, "KMSG", str(tmp_path / "absent"))
    with pytest.raises(ProbeUnavailable) as nothing:
        kernel_log.kernel_log({})
    assert "did not finish within" in nothing.value.reason


def test_switches_and_their_manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switches, bus, proc = tmp_path / "switches", tmp_path / "bus", tmp_path / "proc"
    for folder in (switches, bus, proc):
        folder.mkdir()
    monkeypatch.setattr(devices, "SWITCHES", str(switches))
    monkeypatch.setattr(devices, "PCI", str(bus))
    monkeypatch.setattr(devices, "PROC_FOLDER", str(proc))
    assert devices.fabric({}) == devices.Fabric(0)
    card = bus / "0000:c4:00.0"
    card.mkdir()
    (card / "class").write_text("0x068000\n")
    (card / "vendor").write_text("0x10de\n")
    tool(tmp_path, monkeypatch, "echo failed; exit 3", "systemctl")
    tool(tmp_path, monkeypatch, "echo 'Fabric Manager version is : 550.54.15'", "nv-fabricmanager")
    assert devices.fabric({}) == devices.Fabric(1, None, "failed", "550.54.15")
    for pid, name in ((2, "kthreadd"), (900, "bash")):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "comm").write_text(f"{name}\n")
    assert devices.fabric({}).running is False
    (proc / "900" / "comm").write_text("nv-fabricmanage\n")
    assert devices.fabric({}).running is True


# Processes of runs among others, and unused shared memory among used segments.


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
    def entry(parent: int, *words: str) -> leftovers_probe.Entry:
        return leftovers_probe.Entry(list(words), parent, "S", "me", True, 1.0, 0.0)

    table = {
        10: entry(1, "bash"),
        11: entry(10, "python", "-m", "preflight", "check", "run.sh"),
        12: entry(11, "mpirun", "-np", "1"),
        13: entry(12, "python3", "-c", "agent"),
        14: entry(11, "mpirun", "-np", "1", "-host", "node2"),
        15: entry(10, "mpirun", "python", "train.py"),
    }
    assert leftovers_probe._relatives(table, 13) == {10, 11, 12, 13, 14}
    assert leftovers_probe._relatives({**table, 11: entry(10, "/usr/bin/preflight", "check")}, 13) == {
        10,
        11,
        12,
        13,
        14,
    }


def test_segments_of_dead_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers_probe, "SHM", str(tmp_path))
    for name in ("torch_4194301_1_0", f"torch_{os.getpid()}_1_0", "nccl-AbCdEf", "somebody-elses"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    os.utime(tmp_path / "nccl-AbCdEf", (time.time() - 500, time.time() - 500))
    seen = leftovers({"programs": [], "ports": []})
    found = {(segment.name, segment.of) for segment in seen.segments}
    assert found == {("torch_4194301_1_0", "torch"), ("nccl-AbCdEf", "NCCL")}
    assert max(segment.age_s for segment in seen.segments) >= 500


def test_a_mapped_segment_is_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers_probe, "SHM", str(tmp_path))
    (tmp_path / "psm_abc").write_bytes(b"x" * 4096)
    with (tmp_path / "psm_abc").open("r+b") as file, mmap.mmap(file.fileno(), 4096):
        assert leftovers({"programs": [], "ports": []}).segments == []
    monkeypatch.setattr(leftovers_probe, "MAPS_DEADLINE_S", -1.0)
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
    monkeypatch.setattr(leftovers_probe, "PROC", str(tmp_path))
    monkeypatch.setattr(leftovers_probe, "SHM", str(tmp_path / "absent"))
    seen = leftovers({"programs": ["train.py"], "ports": []})
    assert seen.processes == [] and seen.shm_total_bytes is None


# Signs that a node will be removed, from recorded files and outputs; no cloud is queried.


NODES = """\
NodeName=node1 Arch=x86_64 CPUTot=64 State=ALLOCATED ThreadsPerCore=2 Partitions=gpu
NodeName=node2 CPUTot=64 State=MIXED+DRAIN Reason=bad dimm [root@2026-11-20T10:00:00] Partitions=gpu
NodeName=node3 CPUTot=64 State=DOWN* Partitions=gpu Reason=Not responding
NodeName=node4 CPUTot=64 State=IDLE Reason= Partitions=gpu
"""
RESERVATIONS = """\
ReservationName=pm StartTime=2030-01-02T00:00:00 EndTime=2030-01-03T00:00:00 Nodes=node[1-4] Flags=MAINT,SPEC_NODES
ReservationName=class StartTime=2030-01-02T00:00:00 EndTime=2030-01-03T00:00:00 Nodes=node1 Flags=SPEC_NODES
ReservationName=old StartTime=2020-01-02T00:00:00 EndTime=2020-01-03T00:00:00 Nodes=node1 Flags=MAINT
No reservations in the system
"""
AWS = """[{"NotBefore": "21 Jan 2027 09:00:43 GMT", "Code": "system-reboot", "NotAfter": "later", "State": "active"},
{"Code": "instance-stop", "State": "completed"}]"""
AZURE = '{"DocumentIncarnation": 1, "Events": [{"EventType": "Preempt", "NotBefore": ""}, "odd"]}'


def test_shutdowns_planned_by_systemd() -> None:
    assert parse_scheduled_shutdown("USEC=1795300000000000\nWARN_WALL=1\nMODE=reboot\n") == ("reboot", 1795300000.0)
    assert parse_scheduled_shutdown("USEC=1795300000000000\nMODE=dry-reboot\n") == ("", None)
    assert parse_scheduled_shutdown("") == parse_scheduled_shutdown("MODE=reboot\n") == ("", None)


def test_signs_below_run_and_etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "RUN", str(tmp_path))
    monkeypatch.setattr(maintenance, "ETC", str(tmp_path / "etc"))
    assert signs({}) == maintenance.ShutdownSigns()
    (tmp_path / "systemd" / "shutdown").mkdir(parents=True)
    (tmp_path / "systemd" / "shutdown" / "scheduled").write_text("USEC=4000000000000000\nMODE=poweroff\n")
    (tmp_path / "nologin").write_text("System is going down.\n")
    (tmp_path / "reboot-required").touch()
    seen = signs({})
    assert seen.shutdown == "poweroff" and seen.shutdown_in_s is not None and seen.shutdown_in_s > 0
    assert seen.no_logins == "System is going down." and seen.restart_wanted


def test_states_of_slurm_nodes() -> None:
    assert parse_slurm_nodes(NODES) == [
        SlurmNode("node2", "MIXED+DRAIN", "bad dimm"),
        SlurmNode("node3", "DOWN*", "Not responding"),
    ]
    assert parse_slurm_nodes("slurm_load_node error\n") == []


def test_coming_reservations_for_maintenance() -> None:
    (found,) = parse_reservations(RESERVATIONS, 1.8e9)
    assert found.name == "pm" and found.nodes == "node[1-4]" and found.starts_in_s > 0


def test_a_node_without_slurm_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda *args, **kwargs: None)
    with pytest.raises(ProbeUnavailable, match="scontrol"):
        slurm_plans({"nodes": ["node1"]})


def test_events_of_clouds() -> None:
    assert parse_aws(AWS) == ["system-reboot: 21 Jan 2027 09:00:43 GMT to later"]
    assert parse_azure(AZURE) == ["Preempt: now"]
    assert parse_aws("") == parse_aws("<html>") == parse_aws("{}") == parse_azure("[]") == []


@pytest.mark.parametrize(
    ("files", "cloud"),
    [
        ({"sys_vendor": "Amazon EC2"}, "aws"),
        ({"sys_vendor": "Google", "product_name": "Google Compute Engine"}, "gcp"),
        ({"sys_vendor": "Microsoft Corporation", "chassis_asset_tag": "7783-7084-3265-9085-8269-3286-77"}, "azure"),
        ({"sys_vendor": "Microsoft Corporation"}, ""),
        ({"sys_vendor": "Dell Inc."}, ""),
        ({}, ""),
    ],
)
def test_which_cloud_the_firmware_names(tmp_path: Path, files: dict[str, str], cloud: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text + "\n")
    assert detect_cloud(str(tmp_path)) == cloud


def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vendor: str, answers: dict[str, str]) -> list[str]:
    """A metadata service with these paths only; returns the requested paths."""
    asked: list[str] = []

    class Opener:
        def open(self, request: Any, timeout: float) -> Any:
            path = request.full_url.replace("http://169.254.169.254", "")
            asked.append(path)
            if path not in answers:
                raise urllib.error.HTTPError(request.full_url, 404, "not found", Message(), None)
            return io.BytesIO(answers[path].encode())

    (tmp_path / "sys_vendor").write_text(vendor)
    monkeypatch.setattr(maintenance, "DMI", str(tmp_path))
    monkeypatch.setattr("urllib.request.build_opener", lambda *handlers: Opener())
    return asked


def test_only_the_cloud_in_the_firmware_is_queried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {"/latest/api/token": "t", "/latest/meta-data/events/maintenance/scheduled": AWS}
    asked = answering(monkeypatch, tmp_path, "Amazon EC2", paths)
    assert cloud_events({}).events == ["system-reboot: 21 Jan 2027 09:00:43 GMT to later"]
    assert all(path.startswith("/latest/") for path in asked)
    answering(monkeypatch, tmp_path, "Google", {"/computeMetadata/v1/instance/maintenance-event": "NONE"})
    assert cloud_events({}).events == []
    asked = answering(monkeypatch, tmp_path, "Dell Inc.", {})
    with pytest.raises(ProbeUnavailable):
        cloud_events({})
    assert asked == []


# The environment: the values that leave the node, and NCCL's files as NCCL reads them.


def test_only_known_variables_leave_the_node_and_secrets_as_hashes() -> None:
    around = {
        "NCCL_ALGO": "Ring",
        "NCCL_AUTH_TOKEN": "s3cret",
        "UCX_URL": "http://me:secret@host/",
        "WANDB_API_KEY": "abc",
        "MY_PRIVATE_NOTE": "x",
        "PADDLE_LONG": "x" * 5000,
    }
    shown, hidden = split_secrets(around, {"WANDB_API_KEY"}, "key")
    assert shown == {"NCCL_ALGO": "Ring"}
    assert set(hidden) == {"NCCL_AUTH_TOKEN", "UCX_URL", "WANDB_API_KEY", "PADDLE_LONG"}
    assert not any("secret" in text or "s3cret" in text for text in hidden.values())


def test_hashes_are_comparable_only_within_a_run() -> None:
    assert keyed_hash("one", "value") == keyed_hash("one", "value") != keyed_hash("two", "value")
    with pytest.raises(ProbeUnavailable, match="no key"):
        environment({})


def test_settings_are_read_as_nccl_reads_them() -> None:
    text = "# tuned\nNCCL_ALGO=Ring\n NCCL_PROTO=LL\nNCCL_NET = IB\njust words\n\nNCCL_DEBUG= INFO\nNCCL_ALGO=Tree\n"
    settings, unread = parse_settings(text)
    assert settings == {"NCCL_ALGO": "Ring", "NCCL_DEBUG": " INFO"}
    assert [line.partition(":")[0] for line in unread] == ["line 3", "line 4", "line 5", "line 7"]


def test_the_users_file_comes_before_the_systems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".nccl.conf").write_text("NCCL_ALGO=Ring\nHF_TOKEN=hf_x\n")
    (tmp_path / "nccl.conf").write_text("NCCL_ALGO=Tree\n")
    monkeypatch.setattr(environment_probe, "SYSTEM_NCCL_FILE", str(tmp_path / "nccl.conf"))
    first, second = nccl_files({}, str(tmp_path))
    assert (first.settings, second.settings) == ({"NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree"})
    (tmp_path / "other").write_text("NCCL_ALGO=CollNet")
    chosen = nccl_files({"NCCL_CONF_FILE": str(tmp_path / "other")}, str(tmp_path))
    assert [file.settings["NCCL_ALGO"] for file in chosen] == ["CollNet", "Tree"]


def test_an_unusable_file_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment_probe, "SYSTEM_NCCL_FILE", str(tmp_path / "absent"))
    assert nccl_files({}, str(tmp_path)) == []
    (tmp_path / ".nccl.conf").write_text("x" * (environment_probe.MAX_FILE_BYTES + 1))
    (large,) = nccl_files({}, str(tmp_path))
    assert "larger" in large.problem


def test_deepspeeds_files_of_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:/nowhere/lib")
    (tmp_path / ".deepspeed_env").write_text("NCCL_DEBUG=INFO\nWANDB_API_KEY=secret\nbroken\n")
    seen = environment({"run_key": "k", "hashed": [], "export_files": True})
    assert seen.variables["NCCL_ALGO"] == "Ring" and seen.directory == str(tmp_path)
    assert seen.missing_folders == ["/nowhere/lib"]
    (file,) = [file for file in seen.export_files if file.path.startswith(str(tmp_path))]
    assert set(file.settings) == {"NCCL_DEBUG", "WANDB_API_KEY"} and "secret" not in str(file)
    assert file.unread == ["line 3 has no equals sign"]


def test_a_hanging_home_directory_does_not_hide_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()
    monkeypatch.setattr(environment_probe, "LOOK_S", 0.05)
    monkeypatch.setattr(environment_probe, "nccl_files", lambda *_: ended.wait(20))
    monkeypatch.setattr(environment_probe, "_account", lambda: ended.wait(20))
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("HOME", "/home/dead")
    try:
        seen = environment({"run_key": "k"})
    finally:
        ended.set()
    assert seen.variables["NCCL_ALGO"] == "Ring" and seen.user == ""
    assert seen.nccl_files[0].path == "/home/dead" and "no response" in seen.nccl_files[0].problem
