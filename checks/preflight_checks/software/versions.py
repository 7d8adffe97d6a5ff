"""Whether driver, CUDA runtime and frameworks fit each other, on each node and between nodes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from preflight.job import Claim, Job
from preflight.judgement import Verdict, check, command, failed, not_applicable, passed, unknown
from preflight.outcome import Command, Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed, Unavailable
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, gpu_claims, unseen
from preflight_checks.gpus.gpus import plan_gpus
from preflight_checks.majority import split
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.probes.stack import stack
from preflight_checks.software.software import build_of, numbers, plan_stack
from preflight_checks.tables import table

#: Of these a different major or minor version ends in a protocol error or a hang between ranks.
WIRE_LEVEL = ("torch", "paddlepaddle", "nccl", "horovod", "ray")


@functools.cache
def minimum_drivers() -> dict[str, str]:
    """The oldest driver by CUDA version (`12` or `10.2`), from data/cuda_driver.toml."""
    return {row["cuda"]: row["driver"] for row in table("cuda_driver")["runtime"]}


def minimum_driver(cuda: str) -> str | None:
    """The oldest driver for a CUDA runtime such as `12.8`; None when the table does not know it."""
    table = minimum_drivers()
    major, _, rest = cuda.partition(".")
    return table.get(f"{major}.{rest.split('.')[0]}") or table.get(major)


@check(
    "VER001",
    "driver-too-old",
    plan=plan_stack,
    probes=(stack, gpus),
    cost="reads files of the installed framework and loads libcuda in the ranks' interpreter; asks NVML",
    severity=Severity.ERROR,
    evidence=(
        "pytorch/pytorch#920",
        "NVIDIA/nccl#447",
        "gpustack/gpustack#1254",
        "zai-org/ChatGLM3#100",
        "https://docs.nvidia.com/deploy/cuda-compatibility/index.html",
    ),
)
def driver_too_old(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The driver of every node is new enough for the CUDA runtime of the ranks' framework.

    What it checks: the driver NVML reports against the CUDA version the installed torch (or paddle, tensorflow) was
    built for, by NVIDIA's table with minor-version compatibility. Where the ranks load a newer user-space driver
    (NVIDIA's forward-compatibility package), its version counts, on GPUs that it supports.

    Why it matters: on the node with the old driver no GPU can be used; with NCCL this showed as a hang.

    Example: driver 470.82 and torch 2.5 built for CUDA 12.4, which needs 525.60.13.

    Fix: update the driver, install a build for an older CUDA, or use NVIDIA's forward-compatibility package.

    Known limits: the CUDA version that nvidia-smi shows is the newest the driver supports and says nothing of what is
    installed; it is not used here. Which branches of the kernel's driver a compatibility package works with is not
    looked up. AMD's drivers are not compared with ROCm.

    Evidence: pytorch/pytorch#920, NVIDIA/nccl#447, gpustack/gpustack#1254, zai-org/ChatGLM3#100; NVIDIA's guide to
    CUDA compatibility.
    """
    claims = gpu_claims(job)
    if not claims:
        yield not_applicable("driver", "nothing in the job asks for GPUs")
        return
    old: dict[tuple[str, str, str], list[str]] = {}
    without_gpus: dict[tuple[str, str], list[str]] = {}
    consumer: dict[tuple[str, str, str], list[str]] = {}
    for seen in facts.each(gpus):
        node = seen.node
        if isinstance(seen.fact, Unavailable):
            yield unknown(node, f"its driver is not known: {seen.fact.reason}", required=True)
            continue
        cards = seen.fact.value
        software = facts.of(stack, node)
        if not isinstance(software, Observed):
            required = software.kind != "context"
            yield unknown(node, f"the ranks' framework is not known: {software.reason}", required=required)
            continue
        build = build_of(job, software.value)
        if build is None:
            reason = f"neither torch, paddle nor tensorflow is installed for {software.value.executable}"
            yield unknown(node, reason, required=True)
            continue
        what = f"{build.framework} {build.version}"
        if cards.vendor == "amd":
            if build.hip:
                yield unknown(node, f"no driver is listed for ROCm {build.hip} of {what}")
            else:
                without_gpus.setdefault((what, "ROCm"), []).append(node)
            continue
        driver = cards.driver
        if not driver:
            yield unknown(node, "blocked by GPU011: its driver does not answer", required=True)
            continue
        if not build.cuda:
            without_gpus.setdefault((what, "CUDA"), []).append(node)
            continue
        needed = minimum_driver(build.cuda)
        loaded = software.value.driver.version
        if needed is None:
            yield unknown(node, f"no driver is listed for CUDA {build.cuda} of {what}")
        elif numbers(driver) >= numbers(needed):
            yield passed(node)
        elif numbers(loaded) > numbers(driver) and numbers(loaded) >= numbers(needed):
            models = {card.name for card in cards.gpus if card.name}
            if any(_consumer(model) for model in models):
                consumer.setdefault((driver, loaded, fold(sorted(models))), []).append(node)
            else:
                yield passed(node)
        else:
            old.setdefault((driver, what, build.cuda), []).append(node)
    for (what, vendor), nodes in without_gpus.items():
        yield _without(what, vendor, nodes, facts, claims)
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
    for (driver, loaded, models_), nodes in consumer.items():
        yield failed(
            f"forward compatibility: {loaded}",
            f"the forward-compatibility driver {loaded} on {fold(nodes)} works with data-centre GPUs only, not with "
            f"{models_}",
            at=Evidence("libcuda.so.1", loaded, f"driver {driver}, or a data-centre GPU", "nvidia-smi", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Take the compat folder out of LD_LIBRARY_PATH and update the driver on {fold(nodes)}.",
        )


def _consumer(model: str) -> bool:
    return "GeForce" in model or "TITAN" in model


def _without(what: str, vendor: str, nodes: list[str], facts: Facts, claims: tuple[Claim, ...]) -> Verdict:
    fact = facts.of(stack, nodes[0])
    executable = fact.value.executable if isinstance(fact, Observed) else "python3"
    return failed(
        f"{what}: no {vendor}",
        f"{what} on {fold(nodes)} was built without {vendor}, and the job needs GPUs",
        at=Evidence("framework", what, f"a build for {vendor}", f"{executable} -m pip list", nodes[0]),
        also=claims,
        nodes=nodes,
        remedy=f"Install a {vendor} build of {what.split()[0]} for {executable}.",
    )


@check(
    "VER002",
    "driver-skew",
    plan=plan_gpus,
    probes=(gpus,),
    cost="asks NVML; well under a second",
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
    probes=(packages,),
    cost="reads the metadata of installed packages in the ranks' interpreter",
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
        if name in WIRE_LEVEL and numbers(version)[:2] != numbers(found.common)[:2]
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
        run=_installing(name, found.common, {node: have[node].executable for node in found.odd}),
        severity=None if breaking else Severity.WARNING,
        confidence=None if breaking else Confidence.MEDIUM,
    )


#: Whose builds for one CUDA are told apart by a suffix, which is the name of their index, too.
_BY_INDEX = ("torch", "torchvision", "torchaudio")


def _installing(name: str, version: str, executables: Mapping[str, str]) -> list[Command]:
    """What installs this version on each node with the interpreter there; nothing where that is no matter of pip."""
    _, _, build = version.partition("+")
    if name == "python" or not version[:1].isdigit() or (build and name not in _BY_INDEX):
        return []
    index = ("--index-url", f"https://download.pytorch.org/whl/{build}") if build else ()
    by_executable: dict[str, list[str]] = {}
    for node, executable in executables.items():
        by_executable.setdefault(executable, []).append(node)
    return [
        command(executable, "-m", "pip", "install", f"{name}=={version}", *index, on=nodes)
        for executable, nodes in by_executable.items()
    ]
