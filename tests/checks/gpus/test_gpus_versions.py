"""GPUs, drivers and frameworks of the nodes."""

from __future__ import annotations

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import OneOf
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.gpus.presence import gpu_count, gpu_model
from preflight_checks.probes.gpus import Gpu, Gpus, gpus
from preflight_checks.probes.libraries import DriverLibrary
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.probes.stack import Build, Stack, stack
from preflight_checks.software.frameworks import driver_skew, driver_too_old, framework_skew, minimum_driver
from tests.checks.check_builders import TIMEOUT, fact, facts, fleet, job, judge, one, plan, statuses

JOB = {"backend": "nccl", "gpus_per_node": 8}
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
    verdicts = judge(gpu_count, job(**JOB), fleet(3), facts(cards("node0"), cards("node1", lost=1), cards("node2")))
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
    found = one(judge(gpu_count, job(**JOB), fleet(1), facts(broken("node0", problem))), Status.FAIL)
    assert words in found.message and found.nodes == ("node0",)


def test_uncounted_gpus_are_unknown_and_required() -> None:
    denied = facts(fact(gpus, "node0", Unavailable("denied", "NVML may not be used by this user")))
    assert one(judge(gpu_count, job(**JOB), fleet(1), denied), Status.UNKNOWN).required


def test_a_different_model_is_named() -> None:
    seen = facts(cards("node0"), cards("node1"), cards("node2", name="NVIDIA A100-SXM4-40GB"))
    found = one(judge(gpu_model, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "A100" in found.message
    assert statuses(judge(gpu_model, job(**JOB), fleet(2), facts(cards("node0"), cards("node1")))) == {"pass"}


@pytest.mark.parametrize(
    ("cuda", "driver"),
    [("13.0", "580.65.06"), ("12.8", "525.60.13"), ("11.8", "450.80.02"), ("10.2", "440.33"), ("99.1", None)],
)
def test_each_cuda_version_has_its_minimum_driver(cuda: str, driver: str | None) -> None:
    assert minimum_driver(cuda) == driver


def test_an_old_driver_is_reported_with_the_version_it_needs() -> None:
    old = software("node1", driver="470.82.01")
    seen = facts(cards("node0"), cards("node1", driver="470.82.01"), software("node0"), old)
    found = one(judge(driver_too_old, job(**JOB), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",)
    assert all(text in found.message for text in ("470.82.01", "torch 2.7.1", "12.8", "525.60.13"))


def test_versions_are_compared_as_numbers() -> None:
    seen = facts(cards("node0", driver="1000.1"), software("node0"))
    assert statuses(judge(driver_too_old, job(**JOB), fleet(1), seen)) == {"pass"}


def test_forward_compatibility_counts_only_on_data_centre_gpus() -> None:
    newer = software("node0", driver="570.86.15")
    assert statuses(judge(driver_too_old, job(**JOB), fleet(1), facts(cards("node0", driver="470.82.01"), newer))) == {
        "pass"
    }
    game = cards("node0", driver="470.82.01", name="NVIDIA GeForce RTX 3090")
    found = one(judge(driver_too_old, job(**JOB), fleet(1), facts(game, newer)), Status.FAIL)
    assert "GeForce" in found.message and "data-centre" in found.message
    still_old = software("node0", driver="510.47.03")
    short = facts(cards("node0", driver="470.82.01"), still_old)
    assert statuses(judge(driver_too_old, job(**JOB), fleet(1), short)) == {"fail"}


def test_a_build_without_cuda_is_an_error() -> None:
    seen = facts(*(made for i in range(3) for made in (cards(f"node{i}"), software(f"node{i}", cuda=""))))
    found = one(judge(driver_too_old, job(**JOB), fleet(3), seen), Status.FAIL)
    assert "built without CUDA" in found.message and found.nodes == ("node0", "node1", "node2")


def test_amd_gpus_need_a_rocm_build() -> None:
    radeon = fact(gpus, "node0", Gpus("6.7.0", gpus=[Gpu(0, "aldebaran", compute_capability="gfx90a")], vendor="amd"))
    cuda = one(judge(driver_too_old, job(**JOB), fleet(1), facts(radeon, software("node0"))), Status.FAIL)
    assert "without ROCm" in cuda.message
    hip = facts(radeon, software("node0", cuda="", hip="6.2"))
    assert statuses(judge(driver_too_old, job(**JOB), fleet(1), hip)) == {"unknown"}


def test_an_unknown_context_is_optional_but_a_silent_one_is_required() -> None:
    nowhere = fact(stack, "node0", Unavailable("context", "no interpreter is known"))
    assert not one(judge(driver_too_old, job(**JOB), fleet(1), facts(cards("node0"), nowhere)), Status.UNKNOWN).required
    silent = fact(stack, "node0", TIMEOUT)
    assert one(judge(driver_too_old, job(**JOB), fleet(1), facts(cards("node0"), silent)), Status.UNKNOWN).required


def test_an_older_driver_on_one_node_is_a_warning() -> None:
    seen = facts(cards("node0"), cards("node1"), cards("node2", driver="535.129.03"))
    assert one(judge(driver_skew, job(**JOB), fleet(3), seen), Status.FAIL).nodes == ("node2",)


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
