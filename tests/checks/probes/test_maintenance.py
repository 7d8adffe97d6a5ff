"""Signs that a node will be removed, from recorded files and outputs; no cloud is queried."""

from __future__ import annotations

import io
import urllib.error
from email.message import Message
from pathlib import Path
from typing import Any

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import maintenance
from preflight_checks.probes.maintenance import (
    SlurmNode,
    cloud_events,
    detect_cloud,
    parse_aws,
    parse_azure,
    parse_reservations,
    parse_scheduled,
    parse_slurm_nodes,
    signs,
    slurm_plans,
)

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
    assert parse_scheduled("USEC=1795300000000000\nWARN_WALL=1\nMODE=reboot\n") == ("reboot", 1795300000.0)
    assert parse_scheduled("USEC=1795300000000000\nMODE=dry-reboot\n") == ("", None)
    assert parse_scheduled("") == parse_scheduled("MODE=reboot\n") == ("", None)


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
