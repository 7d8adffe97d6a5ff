"""Kernel messages of the driver, from recorded lines, a made-up journal and a made-up buffer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import devices, kernel_log
from preflight_checks.probes.kernel_log import sum_up

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
    assert "did not end within" in nothing.value.reason


def test_switches_and_their_manager(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    switches, bus, proc = tmp_path / "switches", tmp_path / "bus", tmp_path / "proc"
    for folder in (switches, bus, proc):
        folder.mkdir()
    monkeypatch.setattr(devices, "SWITCHES", str(switches))
    monkeypatch.setattr(devices, "PCI", str(bus))
    monkeypatch.setattr(devices, "PROC", str(proc))
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
