"""Frameworks with GPUs, cuDNN, NCCL, compilers and the driver's library, on facts made for the test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Job
from preflight.model.recording import FactRecord, Facts
from preflight.plugins.authoring import Check
from preflight_checks.comparison import table
from preflight_checks.probes.devices import DeviceNodes, device_nodes
from preflight_checks.probes.libraries import DriverLibrary, LibraryLookup
from preflight_checks.probes.stack import Build, DeepSpeedOps, HorovodBuild, Stack, Toolkit, stack
from preflight_checks.software.frameworks import container_loses_gpus, gpu_driver_library
from preflight_checks.software.wheels import (
    compiled_at_start,
    cudnn_mismatch,
    horovod_lacks_feature,
    nccl_library_differs,
    runs_on,
    toolkit_mismatch,
    wheel_lacks_gpu,
)
from tests.checks.cards import JOB, healthy, node_with
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

ARCHITECTURES = ["sm_70", "sm_80", "sm_90", "compute_90"]
CUDNN = LibraryLookup(
    "libcudnn.so.9", "/env/nvidia/cudnn/lib/libcudnn.so.9", "the RPATH of the library that needs it", "9.5.1"
)
NCCL = LibraryLookup(
    "libnccl.so.2", "/env/nvidia/nccl/lib/libnccl.so.2", "the RPATH of the library that needs it", "2.26.2"
)
TORCH = Build("torch", "2.7.1+cu126", "12.6", "", "9.5.1.17", "2.26.2", ARCHITECTURES, [CUDNN, NCCL])
DRIVER = DriverLibrary("/lib/libcuda.so.550.54.15", "550.54.15")
USUAL = Stack("/env/bin/python", [TORCH], DRIVER, Toolkit("/usr/local/cuda", "12.4"), DeepSpeedOps("0.16.9"))
OFFLOADED = {**JOB, "offload_optimizer_device": "cpu", "optimizer_type": "AdamW"}


def node(name: str, software: Stack = USUAL, **torch: Any) -> list[FactRecord]:
    """A node with healthy GPUs and this software."""
    if torch:
        software = replace(software, builds=[replace(TORCH, **torch)])
    return [node_with(name), fact(stack, name, software)]


@pytest.mark.parametrize(
    ("architectures", "capability", "expected"),
    [
        (["sm_80"], "8.0", "native"),
        (["sm_80"], "8.6", "native"),
        (["sm_86"], "8.0", ""),
        (["sm_80"], "9.0", ""),
        (["sm_80", "compute_80"], "9.0", "jit"),
        (["compute_90"], "8.0", ""),
        (["sm_90a"], "9.0", "native"),
        (["sm_100a"], "10.3", ""),
        (["sm_100f"], "10.3", "native"),
        (["sm_120"], "12.0", "native"),
        (["sm_50", "sm_90"], "10.0", ""),
        (["compute_90a"], "10.0", ""),
        (["gfx90a", "gfx942:sramecc+:xnack-"], "gfx942", "native"),
        (["gfx90a"], "gfx1100", ""),
        ([], "8.0", ""),
    ],
)
def test_architectures_that_run_on_a_gpu(architectures: list[str], capability: str, expected: str) -> None:
    assert runs_on(architectures, capability) == expected


def test_a_gpu_newer_than_the_wheel() -> None:
    blackwell = replace(healthy(1, "node1"), name="NVIDIA B200", compute_capability="10.0")
    software = [
        fact(stack, name, replace(USUAL, builds=[replace(TORCH, architectures=["sm_90"])]))
        for name in ("node0", "node1")
    ]
    seen = facts(node_with("node0"), node_with("node1", blackwell), *software)
    found = one(judge(wheel_lacks_gpu, job(**JOB), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "NVIDIA B200 (10.0)" in found.message and found.severity is None


def test_a_list_from_the_table_is_only_a_warning() -> None:
    old = replace(healthy(0), name="Tesla K80", compute_capability="3.7")
    seen = facts(
        node_with("node0", old, count=1),
        fact(stack, "node0", replace(USUAL, builds=[replace(TORCH, architectures=None)])),
    )
    assert one(judge(wheel_lacks_gpu, job(**JOB), fleet(1), seen), Status.FAIL).severity is Severity.WARNING
    paddle = Build("paddle", "3.0.0", "12.6")
    unwritten = facts(node_with("node0"), fact(stack, "node0", replace(USUAL, builds=[paddle])))
    assert statuses(judge(wheel_lacks_gpu, job(**JOB), fleet(1), unwritten)) == {"unknown"}


def test_ptx_on_a_driver_older_than_its_toolkit_fails() -> None:
    card = replace(healthy(0), name="NVIDIA B200", compute_capability="10.0")
    slow = facts(node_with("node0", card, count=1, cuda_driver="12.8"), fact(stack, "node0", USUAL))
    assert one(judge(wheel_lacks_gpu, job(**JOB), fleet(1), slow), Status.FAIL).severity is Severity.WARNING
    never = facts(node_with("node0", card, count=1, cuda_driver="12.4"), fact(stack, "node0", USUAL))
    assert one(judge(wheel_lacks_gpu, job(**JOB), fleet(1), never), Status.FAIL).severity is None


@pytest.mark.parametrize(
    ("version", "severity"), [("8.9.7", None), ("9.1.0", Severity.WARNING), ("9.5.0", "pass"), ("9.12.0", "pass")]
)
def test_the_first_cudnn_on_the_path(version: str, severity: Severity | str | None) -> None:
    found = LibraryLookup("libcudnn.so.9", "/apps/cudnn/lib/libcudnn.so.9", "LD_LIBRARY_PATH", version)
    verdicts = judge(cudnn_mismatch, job(**JOB), fleet(2), facts(*node("node0"), *node("node1", libraries=[found])))
    if severity == "pass":
        assert statuses(verdicts) == {"pass"}
        return
    finding = one(verdicts, Status.FAIL)
    assert finding.nodes == ("node1",) and finding.severity is severity
    assert "/apps/cudnn/lib" in finding.message and "LD_LIBRARY_PATH" in finding.remedy


def test_parts_from_another_cudnn() -> None:
    part = LibraryLookup("libcudnn_ops.so.9", "/apps/cudnn/lib/libcudnn_ops.so.9", "LD_LIBRARY_PATH", "9.1.0")
    found = one(
        judge(cudnn_mismatch, job(**JOB), fleet(1), facts(*node("node0", libraries=[CUDNN, part]))), Status.FAIL
    )
    assert found.severity is Severity.WARNING and "its parts 9.1.0" in found.message
    other = replace(part, version="8.9.0")
    found = one(
        judge(cudnn_mismatch, job(**JOB), fleet(1), facts(*node("node0", libraries=[CUDNN, other]))), Status.FAIL
    )
    assert found.severity is None


def test_an_unpinned_version_comes_from_the_table() -> None:
    old = replace(CUDNN, version="8.9.2")
    seen = facts(*node("node0", cudnn="", libraries=[old]))
    assert "9.5" in one(judge(cudnn_mismatch, job(**JOB), fleet(1), seen), Status.FAIL).message
    minor = facts(*node("node0", cudnn="", libraries=[replace(CUDNN, version="9.1.0")]))
    assert statuses(judge(cudnn_mismatch, job(**JOB), fleet(1), minor)) == {"pass"}
    strange = facts(*node("node0", version="9.9.9", cudnn="", libraries=[old]))
    assert statuses(judge(cudnn_mismatch, job(**JOB), fleet(1), strange)) == {"unknown"}


def test_a_different_nccl_on_one_node() -> None:
    other = LibraryLookup("libnccl.so.2", "/usr/lib/libnccl.so.2.18.5", "the loader's cache (ldconfig)", "2.18.5")
    seen = facts(*node("node0"), *node("node1"), *node("node2", libraries=[other]))
    found = one(judge(nccl_library_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is None and "/usr/lib/libnccl.so.2.18.5" in found.message
    patch = facts(*node("node0"), *node("node1"), *node("node2", libraries=[replace(other, version="2.26.5")]))
    assert one(judge(nccl_library_differs, job(**JOB), fleet(3), patch), Status.FAIL).severity is Severity.WARNING
    same = facts(*(record for i in range(2) for record in node(f"node{i}", libraries=[other])))
    assert one(judge(nccl_library_differs, job(**JOB), fleet(2), same), Status.FAIL).severity is Severity.WARNING


@pytest.mark.parametrize(
    ("library", "words"),
    [
        (DriverLibrary(problem="missing", detail="cannot open shared object file"), "cannot load"),
        (DriverLibrary("/lib/libcuda.so.1", "", "empty", "file too short"), "empty file"),
        (DriverLibrary("/lib/libcuda.so.1", "", "unloadable", "invalid ELF header"), "cannot be loaded"),
        (DriverLibrary("/apps/libcuda.so.470.57.02", "470.57.02"), "older than the kernel's"),
        (replace(DRIVER, empty_files=["libnvidia-ptxjitcompiler.so.1"]), "ptxjitcompiler"),
    ],
)
def test_unusable_driver_libraries(library: DriverLibrary, words: str) -> None:
    seen = facts(*node("node0"), *node("node1", replace(USUAL, driver=library)))
    found = one(judge(gpu_driver_library, job(**JOB), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and words in found.message and "{" not in found.remedy


def test_a_newer_driver_library_is_forward_compatibility() -> None:
    newer = DriverLibrary("/usr/local/cuda/compat/libcuda.so.570.86.15", "570.86.15")
    seen = facts(*node("node0", replace(USUAL, driver=newer)))
    assert statuses(judge(gpu_driver_library, job(**JOB), fleet(1), seen)) == {"pass"}


@pytest.mark.parametrize(
    ("software", "words"),
    [
        (replace(USUAL, toolkit=None), "nvcc was not found"),
        (replace(USUAL, toolkit=Toolkit("/opt/cuda-11.8", "11.8")), "11.8"),
        (replace(USUAL, toolkit=Toolkit("/opt/cuda", "", "is not there")), "does not run"),
        (replace(USUAL, deepspeed=DeepSpeedOps("0.16", ["cpu_adam"], "2.5", "12.6")), "built for torch 2.5"),
        (replace(USUAL, deepspeed=DeepSpeedOps("0.16", ["cpu_adam"], "2.7", "12.1")), "built for CUDA 12.1"),
    ],
)
def test_operators_that_cannot_be_built(software: Stack, words: str) -> None:
    seen = facts(*node("node0"), *node("node1", software))
    found = one(judge(toolkit_mismatch, job(**OFFLOADED), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and words in found.message and "cpu_adam" in found.message


def test_operators_built_or_not_needed() -> None:
    built = replace(USUAL, toolkit=None, deepspeed=DeepSpeedOps("0.16", ["cpu_adam"], "2.7", "12.6"))
    assert statuses(judge(toolkit_mismatch, job(**OFFLOADED), fleet(1), facts(*node("node0", built)))) == {"pass"}
    assert plan(toolkit_mismatch, job(**JOB), fleet(1)) == []
    assert set(compiled_at_start(job(**JOB, optimizer_type="AdamW"))) == {"fused_adam"}
    assert compiled_at_start(job(**OFFLOADED, torch_adam=True)) == {}
    assert compiled_at_start(job(**JOB, offload_optimizer_device="cpu")) == {}
    other = replace(USUAL, toolkit=Toolkit("/opt/cuda-11.8", "11.8"))
    skipping = job(**OFFLOADED, env_DS_SKIP_CUDA_CHECK="1")
    assert statuses(judge(toolkit_mismatch, skipping, fleet(1), facts(*node("node0", other)))) == {"pass"}


def horovod(name: str, **extensions: list[str]) -> FactRecord:
    return fact(stack, name, replace(USUAL, horovod=HorovodBuild("0.28.1", extensions)))


def test_features_of_horovods_build() -> None:
    wanted = job(**JOB, horovod_started=True, controller="gloo")
    whole = ["gloo", "mpi", "nccl"]
    seen = facts(
        horovod("node0", torch=whole), horovod("node1", torch=["mpi", "nccl"]), horovod("node2", torch=["gloo"])
    )
    found = [v for v in judge(horovod_lacks_feature, wanted, fleet(3), seen) if v.status is Status.FAIL]
    assert [(v.nodes, v.severity) for v in found] == [(("node1",), Severity.ERROR), (("node2",), Severity.WARNING)]
    nothing = facts(fact(stack, "node0", USUAL), horovod("node1"))
    found = [v for v in judge(horovod_lacks_feature, wanted, fleet(2), nothing) if v.status is Status.FAIL]
    assert {v.nodes for v in found} == {("node0",), ("node1",)}
    assert statuses(judge(horovod_lacks_feature, wanted, fleet(1), facts(horovod("node0", torch=whole)))) == {"pass"}


LINKED = DeviceNodes(["/dev/nvidia0", "/dev/nvidiactl"], [], "systemd", "docker")


@pytest.mark.parametrize(
    ("value", "status"),
    [
        (replace(LINKED, unlinked=["/dev/nvidia0"]), "fail"),
        (replace(LINKED, unlinked=["/dev/nvidia0"], cgroup_driver="cgroupfs"), "pass"),
        (replace(LINKED, unlinked=["/dev/nvidia0"], cdi=True), "pass"),
        (LINKED, "pass"),
        (replace(LINKED, cgroup_driver=""), "unknown"),
        (replace(LINKED, nodes=[]), "unknown"),
        (replace(LINKED, container=True), "unknown"),
    ],
)
def test_containers_lose_their_gpus(value: DeviceNodes, status: str) -> None:
    contained = job(**JOB, container="nvcr.io/nvidia/pytorch:24.10-py3")
    assert statuses(judge(container_loses_gpus, contained, fleet(1), facts(fact(device_nodes, "node0", value)))) == {
        status
    }
    assert plan(container_loses_gpus, job(**JOB), fleet(1)) == []


CHECKS: list[tuple[Check, Job]] = [
    (wheel_lacks_gpu, job(**JOB)),
    (cudnn_mismatch, job(**JOB)),
    (nccl_library_differs, job(**JOB)),
    (gpu_driver_library, job(**JOB)),
    (toolkit_mismatch, job(**OFFLOADED)),
]


@pytest.mark.parametrize(("check", "wanted"), CHECKS, ids=lambda item: item.meta.id if isinstance(item, Check) else "")
def test_matching_software_passes_and_missing_facts_do_not(check: Check, wanted: Job) -> None:
    well = facts(*(record for i in range(3) for record in node(f"node{i}")))
    assert statuses(judge(check, wanted, fleet(3), well)) == {"pass"}
    blind = facts(node_with("node0"), fact(stack, "node0", TIMEOUT))
    assert statuses(judge(check, wanted, fleet(1), blind)) == {"unknown"}
    assert statuses(judge(check, job(backend="gloo"), fleet(1), Facts())) == {"not-applicable"}


def test_the_tables_have_the_entries_that_checks_read() -> None:
    for row in table("wheels")["wheel"]:
        assert {"framework", "version", "looked_at"} <= set(row), row
    for row in table("architectures")["wheel"]:
        assert {"framework", "cuda", "architectures", "source"} <= set(row), row
    torch = [row["version"] for row in table("wheels")["wheel"] if row["framework"] == "torch"]
    assert torch[0] == "1.13" and len(torch) == len(set(torch)) >= 12
