"""Checks that ranks can access the driver: its libraries, and its device nodes in containers."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.comparison import version_of
from preflight_checks.plans import known_facts, on_every_node
from preflight_checks.probes.devices import DeviceNodes, device_nodes
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.libraries import DriverLibrary
from preflight_checks.requirements import fold, gpu_claims, known_text, scopes
from preflight_checks.software.frameworks import COST, build_of, observed_software, plan_stack

_WORDS = {
    "missing": "the ranks cannot load the CUDA driver, libcuda.so.1",
    "empty": "the CUDA driver's library is an empty file",
    "unloadable": "the CUDA driver's library cannot be loaded",
    "timeout": "loading the CUDA driver's library hangs",
    "older": "the ranks load a CUDA driver that is older than the kernel's module",
    "siblings": "libraries of the driver are empty files",
}
_REMEDY = {
    "missing": "Start the container with the GPUs and NVIDIA_DRIVER_CAPABILITIES=compute,utility (Docker: --gpus all), "
    "or install the driver's libraries on {nodes}.",
    "empty": "Remount or reinstall the driver's libraries on {nodes}; a container that was started while the driver "
    "was installed keeps empty files until it is restarted.",
    "unloadable": "Reinstall the driver's libraries on {nodes}.",
    "timeout": "Check the file system that holds the driver's libraries on {nodes}.",
    "older": "Remove the old library from LD_LIBRARY_PATH, or update the driver's libraries on {nodes} to the version "
    "of its kernel module.",
    "siblings": "Reinstall the driver's libraries on {nodes}, or restart the container.",
}


@check(
    "GPU025",
    "gpu-driver-library",
    plan=plan_stack,
    cost=COST,
    severity=Severity.ERROR,
    evidence=(
        "nebius/soperator#2684",
        (
            "NVIDIA's guides to CUDA compatibility and to its container toolkit",
            "https://docs.nvidia.com/deploy/cuda-compatibility/index.html",
        ),
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html",
    ),
)
def gpu_driver_library(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The ranks can load the CUDA driver's library, intact and of the kernel module's version.

    What it checks: whether libcuda.so.1 loads in the ranks' interpreter and environment, from which file; that it and
    the libraries next to it are not empty; and that its version is not older than that of the kernel's module.

    Why it matters: NVML and nvidia-smi work without it, so everything looks fine until torch reports no CUDA device,
    or error 803, "system has unsupported display driver / cuda driver combination".

    Example: the container of node2 was given the `utility` capability only.

    Fix: give the container the `compute` capability, or install the driver's libraries.

    Known limits: the library is loaded, but the GPU is not used. A newer library is forward compatibility, see VER001.
    """
    observed, verdicts = observed_software(job, facts, "the CUDA driver's library")
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
                f"the CUDA driver's library on {node}", "blocked by GPU011: its driver does not answer", nodes=(node,)
            )
            continue
        if build is not None and not build.cuda:
            yield unknown(
                f"the CUDA driver's library on {node}",
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
    for problem, found in problems.items():
        node, library = next(iter(found.items()))
        cards = facts.of(gpus, node)
        kernel = cards.value.driver if isinstance(cards, Observed) else ""
        detail = _detail(problem, library, kernel)
        yield failed(
            f"libcuda.so.1: {problem}",
            f"{_WORDS[problem]} on {fold(found)} ({detail})",
            at=Evidence("libcuda.so.1", detail, f"the library of driver {kernel}", "ldconfig -p | grep libcuda", node),
            also=gpu_claims(job),
            nodes=tuple(found),
            remedy=_REMEDY[problem].format(nodes=fold(found)),
        )
    if well:
        yield passed(f"the CUDA driver's library on {well} nodes")
    elif observed and not problems and not verdicts:
        yield not_applicable("the CUDA driver's library", "no node has a working NVIDIA driver and a build for CUDA")


def _detail(problem: str, library: DriverLibrary, kernel: str) -> str:
    if problem == "older":
        return f"{library.path} is {library.version}, the kernel's module {kernel}"
    if problem == "siblings":
        return f"{fold(library.empty_files or ())} beside {library.path}"
    return (
        f"{library.path}: {library.detail}" if library.path and library.path not in library.detail else library.detail
    )


def _container_claims(job: Job) -> tuple[Claim, ...]:
    found: list[Claim] = []
    for scope in scopes(job):
        if known_text(job, "container", scope):
            found.extend(job.value_claims("container", scope))
    return tuple(dict.fromkeys(found))


@check(
    "GPU026",
    "container-loses-gpus",
    plan=on_every_node(
        device_nodes, when=lambda job, fleet: gpu_claims(job), needed_by=_container_claims, deadline_s=7.0
    ),
    cost="reads /dev, and queries docker, else reads containerd's configuration; under a second",
    without_root="docker's configuration, if its socket is closed to the user",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    evidence=(
        "NVIDIA/nvidia-container-toolkit#48",
        "NVIDIA/nvidia-container-toolkit#251",
        "NVIDIA/nvidia-container-toolkit#1227",
        "NVIDIA/gpu-operator#485",
    ),
)
def container_loses_gpus(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """A reload of systemd does not take the GPUs away from the job's running containers.

    What it checks: if the job runs in containers, whether systemd manages control groups while the driver's device
    nodes have no links below /dev/char and there is no CDI specification.

    Why it matters: at the next `systemctl daemon-reload` (any package update) running containers lose access to their
    GPUs, and NVML reports "Unknown Error" in the middle of training.

    Example: node3 was installed without the udev rule that makes the links.

    Fix: `nvidia-ctk system create-dev-char-symlinks --create-all`, or give containers their GPUs by CDI.

    Known limits: only docker and containerd are queried; inside a container nothing can be seen.
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
            reason = "the agent is in a container itself"
        elif not value.nodes:
            reason = "there are no device nodes of NVIDIA's driver (see GPU011)"
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
            f"creates control groups through systemd, and {fold(value.unlinked, 3)} have no link below /dev/char",
            at=Evidence("/dev/char", f"no link for {fold(value.unlinked, 3)}", "a link each", "ls -l /dev/char", node),
            also=claims,
            nodes=tuple(exposed),
            remedy=f"`nvidia-ctk system create-dev-char-symlinks --create-all` on {fold(exposed)} (by a udev rule, so "
            "that it lasts), or give containers their GPUs by CDI.",
            run=(root_command("nvidia-ctk", "system", "create-dev-char-symlinks", "--create-all", on=exposed),),
        )
    if well:
        yield passed(f"device nodes on {well} nodes")
