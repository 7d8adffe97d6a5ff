"""The probe of GPUs against the stub library and the real binding, and AMD's GPUs from a made-up sysfs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from preflight.agent.wire import ProbeUnavailable
from preflight_checks.probes import gpus
from preflight_checks.probes.gpu_device import pci_address
from tests.cluster.compiled import compile_library
from tests.cluster.gpus import Gpu, Gpus

RUN = """
import dataclasses, json
from preflight_checks.probes import gpus
gpus.DEVICE_S = gpus.SYSTEM_S = 0.7
print(json.dumps(dataclasses.asdict(gpus.gpus({}))))
"""


def probe_fact(folder: Path, text: str) -> dict[str, Any]:
    """The probe's fact about a driver with the answers in `text`."""
    library = folder / "libnvidia-ml.so.1"
    if not library.exists():
        library.symlink_to(compile_library("stub_nvml.c"))
    (folder / "stub.conf").write_text(text)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(folder),
        "STUB_NVML_CONF": str(folder / "stub.conf"),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_all_values_of_a_healthy_gpu(tmp_path: Path) -> None:
    more = {
        "nvlink0": 1,
        "nvlink1": 0,
        "nvlink0_recovery": 3,
        "vbios": "92.00",
        "gsp_firmware": "535",
        "process_pid": 1,
    }
    more |= {"process_memory": 7, "process1_pid": 999999, "fabric_state": 3, "retired_pages": 2}
    seen = probe_fact(tmp_path, Gpus((Gpu(more=more),)).text("n"))
    (card,) = seen["gpus"]
    assert (seen["driver"], seen["cuda_driver"], seen["problem"]) == ("535.183.01", "12.2", "")
    assert card["problem"] == "" and card["unread"] == {}
    assert card["pci"] == "0000:10:00.0" and card["uuid"].startswith("GPU-")
    assert (card["nvlinks"], card["nvlink_errors"]["recovery"]) == ([True, False], 3)
    assert [(p["pid"], bool(p["name"])) for p in card["processes"]] == [(1, True), (999999, False)]
    assert (card["fabric_state"], card["fabric_status"], card["pages_retired"]) == (3, 0, 2)
    assert (card["pcie_width"], card["temperature_slowdown_c"], card["compute_mode"]) == (16, 89, 0)


def test_a_busy_node_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "getloadavg", lambda: (7.0, 0.0, 0.0))
    assert gpus._busy() == ""
    monkeypatch.setattr(os, "getloadavg", lambda: (70.0, 0.0, 0.0))
    assert gpus._busy() == " (the node is busy: load 70 on 2 cores)"


def test_an_old_driver_reports_fewer_values(tmp_path: Path) -> None:
    source = Path(__file__).parents[2] / "cluster" / "stub_nvml.c"
    library = tmp_path / "libnvidia-ml.so.1"
    command = ["cc", "-shared", "-fPIC", "-DOLD_DRIVER", "-o", str(library), str(source)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    card = Gpu(more={"process_pid": 1, "process_memory": 5, "throttle_reasons": 8, "fabric_state": 3})
    seen = probe_fact(tmp_path, Gpus((card,), "470.57.02", 11040).text("n"))
    (found,) = seen["gpus"]
    assert (seen["driver"], found["problem"], found["unread"]) == ("470.57.02", "", {})
    assert [process["pid"] for process in found["processes"]] == [1]
    assert (found["clock_reasons"], found["fabric_state"], found["recovery_action"]) == (8, None, None)
    assert found["memory_used_bytes"] == 500 * 2**20


def test_pairs_of_gpus(tmp_path: Path) -> None:
    cards = (Gpu(more={"peer2": 1, "distance1": 50}), Gpu(more={"recovery_action": 2}), Gpu())
    seen = probe_fact(tmp_path, Gpus(cards).text("n"))
    assert (seen["peer_reads"], seen["peer_distances"]) == ([0, 1, 0], [50, 10, 10])
    assert [card["recovery_action"] for card in seen["gpus"]] == [0, 2, 0]
    assert probe_fact(tmp_path, Gpus((Gpu(),)).text("n"))["peer_reads"] is None


def test_a_hanging_gpu_hides_no_other(tmp_path: Path) -> None:
    cards = (Gpu(), Gpu(more={"temperature": "wedge:60"}), Gpu(more={"error": 15}), Gpu())
    seen = probe_fact(tmp_path, Gpus(cards).text("n"))
    problems = [card["problem_kind"] for card in seen["gpus"]]
    assert problems == ["", "timeout", "lost", ""]
    hung = seen["gpus"][1]
    assert "nvmlDeviceGetTemperature did not return" in hung["problem"]
    assert hung["ecc_uncorrected"] == 0 and hung["temperature_c"] is None


def test_denied_and_missing_bindings(tmp_path: Path) -> None:
    card = Gpu(more={"ecc_uncorrected": "error:4", "mig_mode": "unsupported", "clock": "error:999"})
    (seen,) = probe_fact(tmp_path, Gpus((card,)).text("n"))["gpus"]
    assert seen["problem"] == ""
    assert (seen["ecc_uncorrected"], seen["mig_enabled"], seen["clock_mhz"]) == (None, None, None)
    assert set(seen["unread"]) == {"ecc_uncorrected", "clock_mhz"}
    assert "ermission" in seen["unread"]["ecc_uncorrected"]


def test_a_gpu_lost_during_the_query(tmp_path: Path) -> None:
    (seen,) = probe_fact(tmp_path, Gpus((Gpu(more={"power_usage": "error:15"}),)).text("n"))["gpus"]
    assert seen["problem_kind"] == "lost" and seen["ecc_uncorrected"] == 0 and seen["temperature_c"] is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [("init_error=18\n", "mismatch"), ("init_error=9\n", "no-driver"), ("init_error=wedge:60\n", "timeout")],
)
def test_a_driver_that_does_not_answer(tmp_path: Path, text: str, problem: str) -> None:
    seen = probe_fact(tmp_path, text)
    assert (seen["problem"], seen["gpus"]) == (problem, [])


@pytest.mark.parametrize(
    ("said", "kernel"), [("00000000:1B:00.0", "0000:1b:00.0"), ("00010000:C1:00.0", "0000:c1:00.0"), ("odd", "odd")]
)
def test_pci_addresses_are_written_like_the_kernels(said: str, kernel: str) -> None:
    assert pci_address(said) == kernel


MI250 = """cpu_cores_count 0
simd_count 440
vendor_id 4098
location_id 49408
domain 0
gfx_target_version 90010
unique_id 1234567890
"""


def test_amd_gpus_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, text in enumerate(("cpu_cores_count 64\nsimd_count 0\nvendor_id 0\n", MI250)):
        (tmp_path / "nodes" / str(number)).mkdir(parents=True)
        (tmp_path / "nodes" / str(number) / "properties").write_text(text)
        (tmp_path / "nodes" / str(number) / "name").write_text("aldebaran\n")
    card = tmp_path / "pci" / "0000:c1:00.0"
    card.mkdir(parents=True)
    (card / "mem_info_vram_total").write_text("68702699520\n")
    monkeypatch.setattr(gpus, "KFD", str(tmp_path / "nodes"))
    monkeypatch.setattr(gpus, "PCI", str(tmp_path / "pci"))
    monkeypatch.setattr(gpus, "MODULE", str(tmp_path))
    (tmp_path / "version").write_text("6.7.0\n")
    (found,) = gpus.devices()
    assert found == gpus.Device("aldebaran", "1234567890", "gfx90a", "0000:c1:00.0", 68702699520)
    seen = gpus.gpus({})
    assert (seen.vendor, seen.driver, [card.name for card in seen.gpus]) == ("amd", "6.7.0", ["aldebaran"])


def test_architectures_of_amd() -> None:
    assert [gpus.architecture(n) for n in (90010, 90402, 110000, 100302, 0)] == [
        "gfx90a",
        "gfx942",
        "gfx1100",
        "gfx1032",
        "",
    ]


def script(folder: Path, name: str, text: str) -> None:
    """A shell script with this text, as a tool."""
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def test_the_vendors_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "TOOLS", ((str(tmp_path / "nvidia-smi"), "-L"), (str(tmp_path / "rocm-smi"), "-i")))
    monkeypatch.setattr(gpus, "ANSWER_S", 0.3)
    with pytest.raises(ProbeUnavailable) as missing:
        gpus.management_tool({})
    assert missing.value.kind == "missing"
    script(tmp_path, "rocm-smi", "echo 'GPU[0]: x'")
    assert gpus.management_tool({}).exit_code == 0
    script(tmp_path, "nvidia-smi", "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    failing = gpus.management_tool({})
    assert (failing.exit_code, failing.said) == (9, "NVIDIA-SMI has failed")
    script(tmp_path, "nvidia-smi", "sleep 30")
    assert gpus.management_tool({}).exit_code is None
    (tmp_path / "nvidia-smi").chmod(0o644)
    with pytest.raises(ProbeUnavailable) as denied:
        gpus.management_tool({})
    assert denied.value.kind == "denied"
