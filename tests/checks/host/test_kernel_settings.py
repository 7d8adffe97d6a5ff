"""Settings of the kernel: all are read, those that affect jobs are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.host.machines import kernel_settings_differ
from preflight_checks.probes import kernel_settings as probe
from preflight_checks.probes.kernel_settings import KernelSettings, kernel_settings
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, local_fleet, one, statuses

GOOD = {"net.core.rmem_max": "67108864", "vm.swappiness": "10", "kernel.threads-max": "1000"}


def nodes(**changes: str) -> list[FactRecord]:
    """Four nodes, the last with these changes; `__` is a dot."""
    other = {**GOOD, **{name.replace("__", "."): value for name, value in changes.items()}}
    return [fact(kernel_settings, f"node{i}", KernelSettings(other if i == 3 else GOOD)) for i in range(4)]


def test_a_node_with_another_setting_is_named() -> None:
    records = facts(*nodes(net__core__rmem_max="212992"))
    found = one(judge(kernel_settings_differ, job(), fleet(4), records), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity in (None, Severity.INFO)
    assert "net.core.rmem_max: node3: 212992; 3 nodes have 67108864" in found.message
    assert "sysctl -w net.core.rmem_max='67108864'" in found.remedy


def test_equal_settings_pass_and_size_dependent_ones_are_ignored() -> None:
    different = {"kernel__threads-max": "2000"}
    assert statuses(judge(kernel_settings_differ, job(), fleet(4), facts(*nodes(**different)))) == {"pass"}


def test_one_machine_is_not_applicable_and_missing_facts_are_unknown() -> None:
    assert statuses(judge(kernel_settings_differ, job(), local_fleet(4), facts())) == {"not-applicable"}
    silent = facts(fact(kernel_settings, "node0", TIMEOUT))
    assert statuses(judge(kernel_settings_differ, job(), fleet(2), silent)) == {"unknown"}


def test_counters_keys_and_transient_interfaces_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "vm/swappiness": "10\n",
        "net/ipv4/tcp_rmem": "4096\t131072\t6291456\n",
        "net/ipv4/conf/eth0/rp_filter": "1\n",
        "net/ipv4/conf/veth12/rp_filter": "1\n",
        "kernel/random/uuid": "other every time\n",
        "kernel/hostname": "node1\n",
        "net/ipv4/tcp_fastopen_key": "0-0-0-0\n",
        "vm/stat_refresh": "",
        "net/ipv6/conf/eth0/stable_secret": "::1\n",
        "kernel/core_pattern": "|/usr/bin/upload --token abcdef %p\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(probe, "ROOT", str(tmp_path))
    assert kernel_settings({}).values == {
        "vm.swappiness": "10",
        "net.ipv4.tcp_rmem": "4096 131072 6291456",
        "net.ipv4.conf.eth0.rp_filter": "1",
        "kernel.core_pattern": "|/usr/bin/upload --token **** %p",
    }
    monkeypatch.setattr(probe, "ROOT", str(tmp_path / "nothing"))
    with pytest.raises(ProbeUnavailable, match="no settings"):
        kernel_settings({})


def test_parameters_of_modules_are_read_and_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "a/parameters/x": "Y\n",
        "a/parameters/y": "default [performance]\n",
        "b/version": "1\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert probe.read_modules(str(tmp_path)) == ({"a.x": "Y", "a.y": "default [performance]"}, 0)
    assert probe.read_modules(str(tmp_path / "nothing")) == ({}, 0)

    def settings(state: str) -> KernelSettings:
        return KernelSettings(GOOD, 0, {"intel_idle.max_cstate": state, "a.x": state})

    records = facts(*[fact(kernel_settings, f"node{i}", settings("9" if i == 3 else "1")) for i in range(4)])
    found = one(judge(kernel_settings_differ, job(), fleet(4), records), Status.FAIL)
    assert found.nodes == ("node3",)
    assert "intel_idle.max_cstate: node3: 9; 3 nodes have 1" in found.message
    assert "set `intel_idle.max_cstate=1` in /etc/modprobe.d" in found.remedy


def test_this_kernel_reports_the_same_twice() -> None:
    first, second = kernel_settings({}), kernel_settings({})
    assert first.values.keys() == second.values.keys() and len(first.values) > 100
    assert "kernel.pid_max" in first.values
