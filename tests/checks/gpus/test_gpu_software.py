"""Frameworks with GPUs, cuDNN, NCCL, compilers and the driver's library, on facts made for the test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Job, OneOf
from preflight.model.recording import FactRecord, Facts, Unavailable
from preflight.plugins.authoring import Check
from preflight_checks.gpus.presence import gpu_count, gpu_model
from preflight_checks.plans import table
from preflight_checks.probes.devices import DeviceNodes, device_nodes
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.libraries import DriverLibrary, LibraryLookup
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.probes.stack import Build, DeepSpeedOps, HorovodBuild, Stack, Toolkit, stack
from preflight_checks.software.frameworks import (
    container_loses_gpus,
    driver_skew,
    driver_too_old,
    framework_skew,
    gpu_driver_library,
    minimum_driver,
)
from preflight_checks.software.wheels import (
    compiled_at_start,
    cudnn_mismatch,
    horovod_lacks_feature,
    nccl_library_differs,
    runs_on,
    toolkit_mismatch,
    wheel_lacks_gpu,
)
from tests.checks.check_builders import (
    JOB,
    TIMEOUT,
    fact,
    facts,
    fleet,
    healthy,
    job,
    judge,
    node_with,
    one,
    plan,
    statuses,
)

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
    assert found.severity is Severity.WARNING and "but parts 9.1.0" in found.message
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


# GPUs, drivers and frameworks of the nodes.


VERSIONS_JOB = {"backend": "nccl", "gpus_per_node": 8}
H100 = "NVIDIA H100 80GB HBM3"


def cards(node: str, count: int = 8, *, driver: str = "550.54.15", name: str = H100, lost: int = 0) -> FactRecord:
    found = [Gpu(i, name, f"GPU-{i}", 80 << 30, "9.0") for i in range(count - lost)]
    found += [Gpu(count - lost + i, problem="GPU is lost") for i in range(lost)]
    return fact(gpus, node, Gpus(driver, driver, "12.4", found))


def broken(node: str, problem: str) -> FactRecord:
    return fact(gpus, node, Gpus(problem=problem, detail="said NVML"))


def installed(node: str, **versions: str) -> FactRecord:
    found = {"torch": "2.7.1", **versions}
    python = found.pop("python", "3.11.7")
    return fact(packages, node, Packages(python, "/env/bin/python", found))


def software(node: str, cuda: str = "12.8", *, driver: str = "550.54.15", hip: str = "") -> FactRecord:
    library = DriverLibrary(f"/lib/libcuda.so.{driver}", driver)
    return fact(stack, node, Stack("/env/bin/python", [Build("torch", "2.7.1", cuda, hip)], library))


def test_a_cpu_job_requests_no_gpu_facts() -> None:
    cpu = job(backend="gloo", processes_per_node=4)
    for check in (gpu_count, gpu_model, driver_too_old, driver_skew):
        assert plan(check, cpu, fleet(2)) == []
        assert statuses(judge(check, cpu, fleet(2), facts())) == {"not-applicable"}


def test_a_job_that_falls_back_needs_no_gpus_where_no_node_has_any() -> None:
    either = OneOf(("nccl", "gloo"))
    none = facts(*(broken(f"node{index}", "no-library") for index in range(2)), software("node0"), software("node1"))
    for check in (gpu_count, driver_too_old):
        assert statuses(judge(check, job(backend=either), fleet(2), none)) == {"not-applicable"}
        assert statuses(judge(check, job(backend="nccl"), fleet(2), none)) != {"not-applicable"}
        assert statuses(judge(check, job(backend=either, gpus_per_node=1), fleet(2), none)) != {"not-applicable"}
    some = facts(cards("node0", 1), broken("node1", "no-library"))
    assert one(judge(gpu_count, job(backend=either), fleet(2), some), Status.FAIL).nodes == ("node1",)


def test_a_node_with_too_few_gpus_is_named_with_the_lost_one() -> None:
    verdicts = judge(
        gpu_count, job(**VERSIONS_JOB), fleet(3), facts(cards("node0"), cards("node1", lost=1), cards("node2"))
    )
    found = one(verdicts, Status.FAIL)
    assert found.nodes == ("node1",)
    assert "7 of the 8 GPUs" in found.message and "GPU is lost" in found.message


def test_ranks_count_where_the_job_names_no_gpus() -> None:
    ranks = job(backend="nccl", processes_per_node=4)
    assert statuses(judge(gpu_count, ranks, fleet(1), facts(cards("node0", 2)))) == {"fail"}
    assert statuses(judge(gpu_count, ranks, fleet(1), facts(cards("node0", 8)))) == {"pass"}


@pytest.mark.parametrize(
    ("problem", "words"),
    [("no-library", "driver library"), ("no-driver", "module"), ("mismatch", "version differs")],
)
def test_driver_problems_are_distinguished(problem: str, words: str) -> None:
    found = one(judge(gpu_count, job(**VERSIONS_JOB), fleet(1), facts(broken("node0", problem))), Status.FAIL)
    assert words in found.message and found.nodes == ("node0",)


def test_uncounted_gpus_are_unknown_and_required() -> None:
    denied = facts(fact(gpus, "node0", Unavailable("denied", "NVML may not be used by this user")))
    assert one(judge(gpu_count, job(**VERSIONS_JOB), fleet(1), denied), Status.UNKNOWN).required


def test_a_different_model_is_named() -> None:
    seen = facts(cards("node0"), cards("node1"), cards("node2", name="NVIDIA A100-SXM4-40GB"))
    found = one(judge(gpu_model, job(**VERSIONS_JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "A100" in found.message
    assert statuses(judge(gpu_model, job(**VERSIONS_JOB), fleet(2), facts(cards("node0"), cards("node1")))) == {"pass"}


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [("13.0", "580.65.06"), ("12.8", "525.60.13"), ("11.8", "450.80.02"), ("10.2", "440.33"), ("99.1", None)],
)
def test_each_cuda_version_has_its_minimum_driver(cuda: str, driver: str | None) -> None:
    assert minimum_driver(cuda) == driver


def test_an_old_driver_is_reported_with_the_version_it_needs() -> None:
    old = software("node1", driver="470.82.01")
    seen = facts(cards("node0"), cards("node1", driver="470.82.01"), software("node0"), old)
    found = one(judge(driver_too_old, job(**VERSIONS_JOB), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",)
    assert all(text in found.message for text in ("470.82.01", "torch 2.7.1", "12.8", "525.60.13"))


def test_versions_are_compared_as_numbers() -> None:
    seen = facts(cards("node0", driver="1000.1"), software("node0"))
    assert statuses(judge(driver_too_old, job(**VERSIONS_JOB), fleet(1), seen)) == {"pass"}


def test_forward_compatibility_counts_only_on_data_centre_gpus() -> None:
    newer = software("node0", driver="570.86.15")
    assert statuses(
        judge(driver_too_old, job(**VERSIONS_JOB), fleet(1), facts(cards("node0", driver="470.82.01"), newer))
    ) == {"pass"}
    game = cards("node0", driver="470.82.01", name="NVIDIA GeForce RTX 3090")
    found = one(judge(driver_too_old, job(**VERSIONS_JOB), fleet(1), facts(game, newer)), Status.FAIL)
    assert "GeForce" in found.message and "data-centre" in found.message
    still_old = software("node0", driver="510.47.03")
    short = facts(cards("node0", driver="470.82.01"), still_old)
    assert statuses(judge(driver_too_old, job(**VERSIONS_JOB), fleet(1), short)) == {"fail"}


def test_a_build_without_cuda_is_an_error() -> None:
    seen = facts(*(made for i in range(3) for made in (cards(f"node{i}"), software(f"node{i}", cuda=""))))
    found = one(judge(driver_too_old, job(**VERSIONS_JOB), fleet(3), seen), Status.FAIL)
    assert "built without CUDA" in found.message and found.nodes == ("node0", "node1", "node2")


def test_amd_gpus_need_a_rocm_build() -> None:
    radeon = fact(gpus, "node0", Gpus("6.7.0", gpus=[Gpu(0, "aldebaran", compute_capability="gfx90a")], vendor="amd"))
    cuda = one(judge(driver_too_old, job(**VERSIONS_JOB), fleet(1), facts(radeon, software("node0"))), Status.FAIL)
    assert "without ROCm" in cuda.message
    hip = facts(radeon, software("node0", cuda="", hip="6.2"))
    assert statuses(judge(driver_too_old, job(**VERSIONS_JOB), fleet(1), hip)) == {"unknown"}


def test_an_unknown_context_is_optional_but_a_silent_one_is_required() -> None:
    nowhere = fact(stack, "node0", Unavailable("context", "no interpreter is known"))
    assert not one(
        judge(driver_too_old, job(**VERSIONS_JOB), fleet(1), facts(cards("node0"), nowhere)), Status.UNKNOWN
    ).required
    silent = fact(stack, "node0", TIMEOUT)
    assert one(
        judge(driver_too_old, job(**VERSIONS_JOB), fleet(1), facts(cards("node0"), silent)), Status.UNKNOWN
    ).required


def test_an_older_driver_on_one_node_is_a_warning() -> None:
    seen = facts(cards("node0"), cards("node1"), cards("node2", driver="535.129.03"))
    assert one(judge(driver_skew, job(**VERSIONS_JOB), fleet(3), seen), Status.FAIL).nodes == ("node2",)


def test_a_different_minor_version_of_torch_is_an_error() -> None:
    seen = facts(installed("node0"), installed("node1"), installed("node2", torch="2.6.0"))
    found = one(judge(framework_skew, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is None
    assert "2.6.0" in found.message and "2.7.1" in found.message


def test_a_patch_or_python_difference_is_a_warning() -> None:
    seen = facts(installed("node0"), installed("node1", torch="2.7.0", python="3.11.9"))
    verdicts = judge(framework_skew, job(), fleet(2), seen)
    assert [v.severity for v in verdicts] == [Severity.WARNING, Severity.WARNING]


def test_a_package_missing_on_one_node_is_a_difference() -> None:
    seen = facts(installed("node0", nccl="2.21.5"), installed("node1", nccl="2.21.5"), installed("node2"))
    found = one(judge(framework_skew, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "not installed" in found.message


def test_equal_environments_pass_and_missing_ones_are_unknown() -> None:
    assert statuses(judge(framework_skew, job(), fleet(2), facts(installed("node0"), installed("node1")))) == {"pass"}
    assert statuses(judge(framework_skew, job(), fleet(2), facts(fact(packages, "node0", TIMEOUT)))) == {"unknown"}
