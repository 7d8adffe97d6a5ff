"""Whether driver, CUDA runtime and frameworks fit each other, on each node and between nodes."""

from __future__ import annotations

import functools
import importlib
import importlib.resources
import sys
from collections.abc import Iterator
from typing import Any

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed, Seen, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, gpu_claims, unseen
from preflight_checks.gpus import plan_gpus
from preflight_checks.majority import split
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.packages import Packages, packages

#: Of these a different major or minor version ends in a protocol error or a hang between ranks.
WIRE_LEVEL = ("torch", "paddlepaddle", "nccl", "horovod", "ray")


@functools.cache
def minimum_drivers() -> dict[str, str]:
    """The oldest driver by CUDA version (`12` or `10.2`), from data/cuda_driver.toml."""
    # The standard library has it from 3.11 on; before, tomli is the same code under another name.
    toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
    text = importlib.resources.files("preflight_checks").joinpath("data/cuda_driver.toml").read_text("utf-8")
    return {row["cuda"]: row["driver"] for row in toml.loads(text)["runtime"]}


def minimum_driver(cuda: str) -> str | None:
    """The oldest driver for a CUDA runtime such as `12.8`; None when the table does not know it."""
    table = minimum_drivers()
    major, _, rest = cuda.partition(".")
    return table.get(f"{major}.{rest.split('.')[0]}") or table.get(major)


def _numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparison."""
    found: list[int] = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))] if part else ""
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def _plan_driver(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    yield from plan_gpus(job, fleet, facts)
    claims = gpu_claims(job)
    if claims:
        for node in fleet.reached:
            yield Request(probe_name(packages), node.name, context=True, because=claims, required=True, deadline_s=8.0)


@check(
    "VER001",
    "driver-too-old",
    plan=_plan_driver,
    severity=Severity.ERROR,
    evidence=("pytorch/pytorch#920", "NVIDIA/nccl#447", "gpustack/gpustack#1254", "zai-org/ChatGLM3#100"),
)
def driver_too_old(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The driver of every node is new enough for the CUDA runtime of the ranks' framework.

    What it checks: the driver NVML reports against the CUDA version the installed torch (or paddle) was built
    for, by NVIDIA's table with minor-version compatibility.

    Why it matters: on the node with the old driver no GPU can be used; with NCCL this showed as a hang.

    Example: driver 470.82 and torch 2.5 built for CUDA 12.4, which needs 525.60.13.

    Fix: update the driver, install a build for an older CUDA, or use NVIDIA's forward-compatibility package.

    Known limits: features that need the toolkit's own driver (PTX compiled at run time) are not considered; with
    a forward-compatibility package it is not told whether the GPU supports it.

    Evidence: pytorch/pytorch#920, NVIDIA/nccl#447, gpustack/gpustack#1254, zai-org/ChatGLM3#100.
    """
    claims = gpu_claims(job)
    if not claims:
        yield not_applicable("driver", "nothing in the job asks for GPUs")
        return
    installed = {seen.node: seen for seen in facts.each(packages)}
    old: dict[tuple[str, str, str], list[str]] = {}
    without_cuda: dict[str, list[Seen[Packages]]] = {}
    for seen in facts.each(gpus):
        node = seen.node
        if isinstance(seen.fact, Unavailable):
            yield unknown(node, f"its driver is not known: {seen.fact.reason}", required=True)
            continue
        driver = seen.fact.value.driver
        if not driver:
            yield unknown(node, "blocked by GPU011: its driver does not answer", required=True)
            continue
        asked = installed.get(node)
        runtime = _runtime(asked)
        if isinstance(runtime, Verdict):
            yield runtime
            continue
        what, cuda, compatible = runtime
        needed = minimum_driver(cuda)
        if not cuda and asked is not None:
            without_cuda.setdefault(what, []).append(asked)
        elif needed is None:
            yield unknown(node, f"no driver is listed for CUDA {cuda} of {what}")
        elif _numbers(driver) >= _numbers(needed):
            yield passed(node)
        elif compatible:
            yield unknown(node, f"driver {driver} is older than {needed}, but {compatible} may make up for it")
        else:
            old.setdefault((driver, what, cuda), []).append(node)
    for what, found in without_cuda.items():
        yield _without_cuda(what, found)
    for (driver, what, cuda), nodes in old.items():
        needed = minimum_driver(cuda) or ""
        yield failed(
            f"driver {driver}",
            f"driver {driver} on {fold(nodes)} is too old for {what}, which was built for CUDA {cuda} and needs "
            f"{needed} or newer",
            at=Evidence("NVML", f"driver {driver}", f"{needed} or newer", "nvidia-smi", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Update the driver on {fold(nodes)} to {needed} or newer, or install a build of "
            f"{what.split()[0]} for an older CUDA.",
        )


def _runtime(seen: Seen[Packages] | None) -> tuple[str, str, str] | Verdict:
    """Framework with version, its CUDA version (empty for none) and a forward-compatibility folder; or why not."""
    if seen is None:
        return unknown("the ranks' framework", "it was not asked for")
    if not isinstance(seen.fact, Observed):
        required = seen.fact.kind != "context"
        return unknown(seen.node, f"the ranks' framework is not known: {seen.fact.reason}", required=required)
    value = seen.fact.value
    for name, framework in (("torch", value.torch), ("paddlepaddle", value.paddle)):
        if framework is not None:
            version = framework.version or value.versions.get(name, "")
            folders = value.forward_compatibility
            return f"{name} {version}", framework.cuda, folders[0] if folders else ""
    reason = f"neither torch nor paddle is installed for {value.executable}"
    return unknown(seen.node, reason, required=True)


def _without_cuda(what: str, found: list[Seen[Packages]]) -> Verdict:
    nodes = [seen.node for seen in found]
    fact = found[0].fact
    executable = fact.value.executable if isinstance(fact, Observed) else "python3"
    return failed(
        f"{what}: no CUDA",
        f"{what} on {fold(nodes)} was built without CUDA, and the job needs GPUs",
        at=Evidence("packages", what, "a build for CUDA", f"{executable} -m pip list", nodes[0]),
        also=found[0].request.because,
        nodes=nodes,
        remedy=f"Install a CUDA build of {what.split()[0]} for {executable}.",
    )


@check(
    "VER002",
    "driver-skew",
    plan=plan_gpus,
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=("NVIDIA/nccl#1328", "NVIDIA/nccl#969"),
)
def driver_skew(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes have one driver version.

    What it checks: the driver version NVML reports on each node.

    Why it matters: a node left behind by an update behaves differently from the rest, and only that one fails.

    Example: seven nodes with 550.54.15 and one with 535.129.03.

    Fix: bring the odd node to the version of the others.

    Known limits: most differences are harmless; this is a hint.

    Evidence: NVIDIA/nccl#1328, NVIDIA/nccl#969.
    """
    if not gpu_claims(job):
        yield not_applicable("drivers", "nothing in the job asks for GPUs")
        return
    blind = tuple(unseen(facts, gpus, "drivers"))
    yield from blind
    drivers = {node: value.driver for node, value in facts.observed(gpus).items() if value.driver}
    found = split(drivers)
    if found is None:
        if not blind:
            yield unknown("drivers", "no node shows a driver (see VER001)")
    elif not found.odd:
        yield passed(f"driver {found.common} on {len(drivers)} nodes")
    else:
        node, driver = found.first_odd
        yield failed(
            "drivers",
            f"driver versions differ: {found.spoken}",
            at=Evidence("NVML", driver, found.common, "nvidia-smi", node),
            also=gpu_claims(job),
            nodes=tuple(found.odd),
            remedy=f"Bring {fold(found.odd)} to driver {found.common}.",
        )


def _plan_frameworks(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if len(fleet.nodes) > 1 and job.launches:
        for node in fleet.reached:
            yield Request(probe_name(packages), node.name, context=True, deadline_s=8.0)


@check(
    "VER003",
    "framework-skew",
    plan=_plan_frameworks,
    severity=Severity.ERROR,
    evidence=("NVIDIA/nccl#286", "NVIDIA/nccl#1328", "Unakar/Logic-RL#30", "deepspeedai/DeepSpeed#3011"),
)
def framework_skew(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks of all nodes run the same framework, NCCL and Python versions.

    What it checks: versions of torch, paddle, DeepSpeed, NCCL and others where the ranks will run, read
    from package metadata, on every node.

    Why it matters: ranks of different versions speak different protocols; the collective hangs or fails with an
    error about something else.

    Example: node3 was re-imaged with torch 2.3 while the others have 2.4.

    Fix: install the same environment everywhere, or use one image or a shared file system.

    Known limits: a different patch version or Python is only warned about; an NCCL outside Python packages is not
    seen.

    Evidence: NVIDIA/nccl#286, NVIDIA/nccl#1328, Unakar/Logic-RL#30, deepspeedai/DeepSpeed#3011.
    """
    if len(fleet.nodes) < 2 or not job.launches:
        yield not_applicable("framework versions", "the job has one node, or no launch")
        return
    yield from unseen(facts, packages, "framework versions")
    have = facts.observed(packages)
    if len(have) < 2:
        return
    names = sorted({name for value in have.values() for name in value.versions})
    differs = False
    for name in (*names, "python"):
        verdict = _skew(name, have)
        if verdict is not None:
            differs = True
            yield verdict
    if not differs:
        yield passed(f"framework versions on {len(have)} nodes")


def _skew(name: str, have: dict[str, Packages]) -> Verdict | None:
    values = {
        node: value.python if name == "python" else value.versions.get(name, "not installed")
        for node, value in have.items()
    }
    found = split(values)
    if found is None or not found.odd:
        return None
    breaking = {
        node: version
        for node, version in found.odd.items()
        if name in WIRE_LEVEL and _numbers(version)[:2] != _numbers(found.common)[:2]
    }
    node, version = next(iter((breaking or found.odd).items()))
    executable = have[node].executable
    return failed(
        f"{name} versions",
        f"{name} differs between nodes: {fold(f'{n}: {v}' for n, v in found.odd.items())}; "
        f"{fold(found.agreeing, 4)} {'has' if len(found.agreeing) == 1 else 'have'} {found.common}",
        at=Evidence("packages", f"{name} {version} for {executable}", found.common, f"{executable} -m pip list", node),
        nodes=tuple(found.odd),
        remedy=f"Install {name} {found.common} on {fold(found.odd)}, or run all ranks from one environment.",
        severity=None if breaking else Severity.WARNING,
        confidence=None if breaking else Confidence.MEDIUM,
    )
