"""The machine, its activity and its scratch folders: recorded files of other machines, and this one."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from preflight.agent.process import stat_lines
from preflight_checks.probes import machine as probe
from preflight_checks.probes.activity import INTERVAL_S, activity, belongs_to_check
from preflight_checks.probes.folders import chosen, hub_model, scratch
from preflight_checks.probes.machine import (
    NumaNode,
    governors,
    logind_settings,
    machine,
    numa_nodes,
    parse_cpuinfo,
    parse_meminfo,
    parse_os_release,
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
    assert chosen("temporary", {"TMPDIR": "/a", "TMP": "/b"}) == ("TMPDIR", "/a")
    assert chosen("temporary", {}) == ("", "/tmp")
    assert chosen("triton", {"TRITON_HOME": "/t"}) == ("TRITON_HOME", "/t/.triton/cache")
    assert chosen("hub", {"HF_HOME": "/h"}) == ("HF_HOME", "/h/hub")


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
