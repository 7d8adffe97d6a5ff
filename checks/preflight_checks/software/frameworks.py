"""Checks that drivers fit the frameworks, and that containers and processes can use the driver's libraries."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping

from preflight._util.sequences import grouped
from preflight.model.findings import Command, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.plugins.authoring import Verdict, check, command, failed, not_applicable, passed, root_command, unknown
from preflight_checks.gpus.presence import plan_gpus, runs_without_gpus
from preflight_checks.plans import (
    all_of,
    combine_plans,
    has_launches,
    has_several_nodes,
    known_facts,
    minor_of,
    missing_facts,
    on_every_node,
    only_if,
    requests_gpus,
    short_version,
    split,
    table,
    version_of,
    warning_check,
)
from preflight_checks.probes.devices import DeviceNodes, device_nodes
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.libraries import DriverLibrary
from preflight_checks.probes.packages import Packages, packages
from preflight_checks.probes.stack import Build, Stack, stack
from preflight_checks.requirements import fold, gpu_claims, known_text, scopes

#: Launchers that start only one framework.
_FRAMEWORK_BY_LAUNCHER = {
    "torchrun": "torch",
    "torch.distributed.launch": "torch",
    "deepspeed": "torch",
    "accelerate": "torch",
    "paddle.distributed.launch": "paddle",
    "fleetrun": "paddle",
}


plan_software = on_every_node(stack, needed_by=gpu_claims, context=True, required=True, deadline_s=9.0)


plan_stack = combine_plans(plan_gpus, plan_software)


def build_of(job: Job, software: Stack) -> Build | None:
    """Return the framework that the job trains with, or else the first installed one."""
    installed = {build.framework: build for build in software.builds}
    for launch in job.launches:
        wanted = _FRAMEWORK_BY_LAUNCHER.get(launch.launcher, "")
        if wanted in installed:
            return installed[wanted]
    return software.builds[0] if software.builds else None


def observed_software(job: Job, facts: Facts, subject: str) -> tuple[dict[str, Stack], list[Verdict]]:
    """Return the software by node, and the verdicts if it is missing or the job needs no GPU."""
    if not gpu_claims(job):
        return {}, [not_applicable(subject, "nothing in the job requests GPUs")]
    if runs_without_gpus(job, facts):
        return {}, [not_applicable(subject, "no node has a GPU, and the job falls back to another backend")]
    return facts.observed(stack), list(missing_facts(facts, stack, subject))


#: Packages whose major or minor version must agree: a difference ends in a protocol error or a hang.
PROTOCOL_PACKAGES = ("torch", "paddlepaddle", "nccl", "horovod", "ray")


@functools.cache
def minimum_drivers() -> dict[str, str]:
    """Return the oldest driver per CUDA version (`12` or `10.2`), from data/cuda_driver.toml."""
    return {row["cuda"]: row["driver"] for row in table("cuda_driver")["runtime"]}


def minimum_driver(cuda: str) -> str | None:
    """Return the oldest driver for a CUDA runtime such as `12.8`; None if the table does not list it."""
    table = minimum_drivers()
    return table.get(short_version(cuda)) or table.get(str(version_of(cuda).major))


@check("VER001", "driver-too-old", plan=plan_stack, severity=Severity.ERROR)
@only_if(requests_gpus, "driver", "nothing in the job requests GPUs")
def driver_too_old(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The driver of every node is new enough for the CUDA runtime of the ranks' framework.

    What it checks: the driver that NVML reports, compared with the CUDA version that the installed torch (or paddle,
    tensorflow) was built for, according to NVIDIA's table with minor-version compatibility. If the ranks load a newer
    user-space driver (NVIDIA's forward-compatibility package), its version counts, on GPUs that it supports.

    Why it matters: on the node with the old driver, no GPU can be used; with NCCL, this has appeared as a hang.

    Example: driver 470.82 and torch 2.5 built for CUDA 12.4, which needs 525.60.13.

    Fix: update the driver, install a build for an older CUDA, or use NVIDIA's forward-compatibility package.

    Known limits: the CUDA version that nvidia-smi shows is the newest that the driver supports, not the installed one,
    and is not used. The driver branches that a compatibility package supports are not checked. AMD's drivers are not
    compared with ROCm.
    """
    claims = gpu_claims(job)
    if runs_without_gpus(job, facts):
        yield not_applicable("driver", "no node has a GPU, and the job falls back to another backend")
        return
    old: dict[tuple[str, str, str], list[str]] = {}
    without_gpus: dict[tuple[str, str], list[str]] = {}
    consumer: dict[tuple[str, str, str], list[str]] = {}
    for row in facts.each(gpus):
        node = row.node
        if isinstance(row.fact, Unavailable):
            yield unknown(node, f"its driver is unknown: {row.fact.reason}", nodes=(node,), required=True)
            continue
        cards = row.fact.value
        software = facts.of(stack, node)
        if not isinstance(software, Observed):
            required = software.kind != "context"
            reason = f"the ranks' framework is unknown: {software.reason}"
            yield unknown(node, reason, nodes=(node,), required=required)
            continue
        build = build_of(job, software.value)
        if build is None:
            reason = f"neither torch, paddle nor tensorflow is installed for {software.value.executable}"
            yield unknown(node, reason, nodes=(node,), required=True)
            continue
        what = f"{build.framework} {build.version}"
        if cards.vendor == "amd":
            if build.hip:
                yield unknown(node, f"the driver that ROCm {build.hip} of {what} needs is unknown", nodes=(node,))
            else:
                without_gpus.setdefault((what, "ROCm"), []).append(node)
            continue
        driver = cards.driver
        if not driver:
            yield unknown(node, "blocked by GPU011: its driver does not respond", nodes=(node,), required=True)
            continue
        if not build.cuda:
            without_gpus.setdefault((what, "CUDA"), []).append(node)
            continue
        needed = minimum_driver(build.cuda)
        loaded = software.value.driver.version
        if needed is None:
            yield unknown(node, f"the driver that CUDA {build.cuda} of {what} needs is unknown", nodes=(node,))
        elif version_of(driver) >= version_of(needed):
            yield passed(node)
        elif version_of(loaded) > version_of(driver) and version_of(loaded) >= version_of(needed):
            models = {card.name for card in cards.gpus if card.name}
            if any("GeForce" in model or "TITAN" in model for model in models):
                consumer.setdefault((driver, loaded, fold(sorted(models))), []).append(node)
            else:
                yield passed(node)
        else:
            old.setdefault((driver, what, build.cuda), []).append(node)
    for (what, vendor), nodes in without_gpus.items():
        yield _missing_build_finding(what, vendor, nodes, facts, claims)
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
            f"the forward-compatibility driver {loaded} on {fold(nodes)} works only with data-centre GPUs, not with "
            f"{models_}",
            at=Evidence("libcuda.so.1", loaded, f"driver {driver}, or a data-centre GPU", "nvidia-smi", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Remove the compat folder from LD_LIBRARY_PATH and update the driver on {fold(nodes)}.",
        )


def _missing_build_finding(
    build_name: str, vendor: str, nodes: list[str], facts: Facts, claims: tuple[Claim, ...]
) -> Verdict:
    fact = facts.of(stack, nodes[0])
    executable = fact.value.executable if isinstance(fact, Observed) else "python3"
    return failed(
        f"{build_name}: no {vendor}",
        f"{build_name} on {fold(nodes)} was built without {vendor}, but the job needs GPUs",
        at=Evidence("framework", build_name, f"a build for {vendor}", f"{executable} -m pip list", nodes[0]),
        also=claims,
        nodes=nodes,
        remedy=f"Install a {vendor} build of {build_name.split()[0]} for {executable}.",
    )


@warning_check("VER002", "driver-skew", plan=plan_gpus)
@only_if(requests_gpus, "drivers", "nothing in the job requests GPUs")
def driver_skew(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes have the same driver version.

    What it checks: the driver version that NVML reports on each node.

    Why it matters: a node that missed an update behaves differently from the rest, and only that node fails.

    Example: seven nodes with 550.54.15 and one with 535.129.03.

    Fix: install the version of the others on the differing node.

    Known limits: most differences are harmless; this is a hint.
    """
    blind = tuple(missing_facts(facts, gpus, "drivers"))
    yield from blind
    drivers = {node: value.driver for node, value in facts.observed(gpus).items() if value.driver}
    division = split(drivers)
    if division is None:
        if not blind:
            yield unknown("drivers", "no node has a visible driver (see VER001)")
    elif not division.odd:
        yield passed(f"driver {division.common} on {len(drivers)} nodes")
    else:
        node, driver = division.first_odd
        yield failed(
            "drivers",
            f"driver versions differ: {division.description}",
            at=Evidence("NVML", driver, division.common, "nvidia-smi", node),
            also=gpu_claims(job),
            nodes=tuple(division.odd),
            remedy=f"Install driver {division.common} on {fold(division.odd)}.",
        )


@check(
    "VER003",
    "framework-skew",
    plan=on_every_node(packages, when=all_of(has_several_nodes, has_launches), context=True, deadline_s=8.0),
    severity=Severity.ERROR,
)
@only_if(all_of(has_several_nodes, has_launches), "framework versions", "the job has one node, or no launch")
def framework_skew(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks of all nodes run the same framework, NCCL and Python versions.

    What it checks: versions of torch, paddle, DeepSpeed, NCCL and others where the ranks will run, read
    from package metadata, on every node.

    Why it matters: ranks of different versions use different protocols; the collective hangs or fails with an
    error about something else.

    Example: node3 was re-imaged with torch 2.3, but the others have 2.4.

    Fix: install the same environment everywhere, or use one image or a shared file system.

    Known limits: a different patch version or Python is only a warning; an NCCL outside Python packages is not seen.
    """
    observed = yield from known_facts(facts, packages, "framework versions")
    if len(observed) < 2:
        return
    names = sorted({name for value in observed.values() for name in value.versions})
    differs = False
    for name in (*names, "python"):
        verdict = _skew_finding(name, observed)
        if verdict is not None:
            differs = True
            yield verdict
    if not differs:
        yield passed(f"framework versions on {len(observed)} nodes")


def _skew_finding(name: str, observed: dict[str, Packages]) -> Verdict | None:
    values = {
        node: value.python if name == "python" else value.versions.get(name, "not installed")
        for node, value in observed.items()
    }
    division = split(values)
    if division is None or not division.odd:
        return None
    breaking = {
        node: version
        for node, version in division.odd.items()
        if name in PROTOCOL_PACKAGES and minor_of(version) != minor_of(division.common)
    }
    node, version = next(iter((breaking or division.odd).items()))
    executable = observed[node].executable
    return failed(
        f"{name} versions",
        f"{name} differs between nodes: {fold(f'{n}: {v}' for n, v in division.odd.items())}; "
        f"{fold(division.agreeing, 4)} {'has' if len(division.agreeing) == 1 else 'have'} {division.common}",
        at=Evidence(
            "packages", f"{name} {version} for {executable}", division.common, f"{executable} -m pip list", node
        ),
        nodes=tuple(division.odd),
        remedy=f"Install {name} {division.common} on {fold(division.odd)}, or run all ranks in the same environment.",
        run=_installing(name, division.common, {node: observed[node].executable for node in division.odd}),
        certain=bool(breaking),
    )


#: Packages whose CUDA builds have a version suffix, which also names their package index.
_INDEXED_PACKAGES = ("torch", "torchvision", "torchaudio")


def _installing(name: str, version: str, executables: Mapping[str, str]) -> list[Command]:
    """Return the commands that install this version with each node's interpreter; empty if pip cannot install it."""
    _, _, build = version.partition("+")
    if name == "python" or not version[:1].isdecimal() or (build and name not in _INDEXED_PACKAGES):
        return []
    index = ("-i", f"https://download.pytorch.org/whl/{build}") if build else ()
    by_executable = grouped((executable, node) for node, executable in executables.items())
    return [
        command(executable, "-m", "pip", "install", f"{name}=={version}", *index, on=nodes)
        for executable, nodes in by_executable.items()
    ]


_LIBRARY_PROBLEMS = table("gpu_driver")["library"]


@check("GPU025", "gpu-driver-library", plan=plan_stack, severity=Severity.ERROR)
def gpu_driver_library(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks can load the CUDA driver library, which is intact and has the kernel module's version.

    What it checks: whether libcuda.so.1 loads in the ranks' interpreter and environment, and from which file; whether
    it and the libraries next to it are not empty; and whether its version is not older than the kernel module's.

    Why it matters: NVML and nvidia-smi work without it, so everything looks fine until torch reports no CUDA device,
    or error 803, "system has unsupported display driver / cuda driver combination".

    Example: the container on node2 has only the `utility` capability.

    Fix: give the container the `compute` capability, or install the driver's libraries.

    Known limits: the library is loaded, but the GPU is not used. A newer library is forward compatibility; see VER001.
    """
    observed, verdicts = observed_software(job, facts, "the CUDA driver library")
    yield from verdicts
    problems: dict[str, dict[str, DriverLibrary]] = {}
    well = 0
    for node, software in observed.items():
        cards, library = facts.of(gpus, node), software.driver
        if isinstance(cards, Observed) and cards.value.vendor != "nvidia":
            continue
        build = build_of(job, software)
        if isinstance(cards, Observed) and cards.value.problem:
            yield unknown(
                f"the CUDA driver library on {node}", "blocked by GPU011: its driver does not respond", nodes=(node,)
            )
            continue
        if build is not None and not build.cuda:
            yield unknown(
                f"the CUDA driver library on {node}",
                "blocked by VER001: the framework is not a CUDA build",
                nodes=(node,),
            )
            continue
        kernel = cards.value.driver if isinstance(cards, Observed) else ""
        if library.problem:
            problems.setdefault(library.problem, {})[node] = library
        elif library.empty_files:
            problems.setdefault("siblings", {})[node] = library
        elif library.version and kernel and version_of(library.version) < version_of(kernel):
            problems.setdefault("older", {})[node] = library
        else:
            well += 1
    for problem, affected_nodes in problems.items():
        node, library = next(iter(affected_nodes.items()))
        cards = facts.of(gpus, node)
        kernel = cards.value.driver if isinstance(cards, Observed) else ""
        detail = _detail(problem, library, kernel)
        yield failed(
            f"libcuda.so.1: {problem}",
            f"{_LIBRARY_PROBLEMS[problem]['what']} on {fold(affected_nodes)} ({detail})",
            at=Evidence("libcuda.so.1", detail, f"the library of driver {kernel}", "ldconfig -p | grep libcuda", node),
            also=gpu_claims(job),
            nodes=tuple(affected_nodes),
            remedy=_LIBRARY_PROBLEMS[problem]["remedy"].format(nodes=fold(affected_nodes)),
        )
    if well:
        yield passed(f"the CUDA driver library on {well} nodes")
    elif observed and not problems and not verdicts:
        yield not_applicable("the CUDA driver library", "no node has both a working NVIDIA driver and a CUDA build")


def _detail(problem: str, library: DriverLibrary, kernel: str) -> str:
    if problem == "older":
        return f"{library.path} has version {library.version}, but the kernel module has {kernel}"
    if problem == "siblings":
        return f"{fold(library.empty_files or ())} next to {library.path}"
    return (
        f"{library.path}: {library.detail}" if library.path and library.path not in library.detail else library.detail
    )


def _container_claims(job: Job) -> tuple[Claim, ...]:
    known_scopes = (scope for scope in scopes(job) if known_text(job, "container", scope))
    return tuple(dict.fromkeys(claim for scope in known_scopes for claim in job.value_claims("container", scope)))


@warning_check(
    "GPU026",
    "container-loses-gpus",
    plan=on_every_node(
        device_nodes, when=lambda job, fleet: gpu_claims(job), needed_by=_container_claims, deadline_s=7.0
    ),
)
def container_loses_gpus(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A reload of systemd does not remove the GPUs from the job's running containers.

    What it checks: if the job runs in containers, whether systemd manages control groups while the driver's device
    nodes have no links in /dev/char and there is no CDI specification.

    Why it matters: at the next `systemctl daemon-reload` (any package update) running containers lose access to their
    GPUs, and NVML reports "Unknown Error" in the middle of training.

    Example: node3 was installed without the udev rule that creates the links.

    Fix: `nvidia-ctk system create-dev-char-symlinks --create-all`, or give containers their GPUs through CDI.

    Known limits: only docker and containerd are queried; inside a container, nothing can be seen.
    """
    claims = _container_claims(job)
    if not claims or not gpu_claims(job):
        yield not_applicable("device nodes", "nothing in the job runs on GPUs in a container")
        return
    exposed: dict[str, DeviceNodes] = {}
    well = 0
    observed = yield from known_facts(facts, device_nodes, "device nodes")
    for node, value in observed.items():
        reason = ""
        if value.container:
            reason = "the agent itself runs in a container"
        elif not value.nodes:
            reason = "the NVIDIA driver has no device nodes (see GPU011)"
        elif not value.cgroup_driver:
            reason = "no container engine reports how it manages control groups"
        if reason:
            yield unknown(f"device nodes on {node}", reason, nodes=(node,))
        elif value.cgroup_driver == "systemd" and value.unlinked and not value.cdi:
            exposed[node] = value
        else:
            well += 1
    if exposed:
        node, value = next(iter(exposed.items()))
        yield failed(
            "device nodes",
            f"containers on {fold(exposed)} lose their GPUs at the next `systemctl daemon-reload`: {value.engine} "
            f"creates control groups through systemd, and {fold(value.unlinked, 3)} have no link in /dev/char",
            at=Evidence("/dev/char", f"no link for {fold(value.unlinked, 3)}", "a link each", "ls -l /dev/char", node),
            also=claims,
            nodes=tuple(exposed),
            remedy=f"`nvidia-ctk system create-dev-char-symlinks --create-all` on {fold(exposed)} (in a udev rule, "
            "to make it permanent), or give containers their GPUs through CDI.",
            run=(root_command("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all", on=exposed),),
        )
    if well:
        yield passed(f"device nodes on {well} nodes")
