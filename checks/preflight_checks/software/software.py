"""What the checks of the GPU software ask and have in common: the framework that the job uses, and versions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from preflight.job import Job
from preflight.judgement import Verdict, not_applicable, unknown
from preflight.recording import Facts, Fleet, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, gpu_claims
from preflight_checks.gpus.gpus import plan_gpus
from preflight_checks.probes.stack import Build, Stack, stack

COST = "reads files of the installed framework and loads libcuda in the ranks' interpreter; a second or two"
#: Launchers that start one framework and no other.
_OF_LAUNCHER = {
    "torchrun": "torch",
    "torch.distributed.launch": "torch",
    "deepspeed": "torch",
    "accelerate": "torch",
    "paddle.distributed.launch": "paddle",
    "fleetrun": "paddle",
}


def plan_software(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """The software of every node as the ranks' interpreter has it, when the job needs GPUs."""
    claims = gpu_claims(job)
    for node in fleet.reached if claims else ():
        yield Request(probe_name(stack), node.name, context=True, because=claims, required=True, deadline_s=9.0)


def plan_stack(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    """The software, and the GPUs that it is for."""
    yield from plan_gpus(job, fleet, facts)
    yield from plan_software(job, fleet, facts)


def build_of(job: Job, software: Stack) -> Build | None:
    """The framework that the job trains with; the first that is installed where the launcher does not tell."""
    installed = {build.framework: build for build in software.builds}
    for launch in job.launches:
        wanted = _OF_LAUNCHER.get(launch.launcher, "")
        if wanted in installed:
            return installed[wanted]
    return software.builds[0] if software.builds else None


def numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version, for comparison."""
    found: list[int] = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))] if part else ""
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


def seen_software(job: Job, facts: Facts, subject: str) -> tuple[dict[str, Stack], list[Verdict]]:
    """The software by node, and what is to be said where there is none or the job needs no GPU."""
    if not gpu_claims(job):
        return {}, [not_applicable(subject, "nothing in the job asks for GPUs")]
    have: dict[str, Stack] = {}
    missing: dict[str, list[str]] = {}
    for seen in facts.each(stack):
        if isinstance(seen.fact, Observed):
            have[seen.node] = seen.fact.value
        else:
            missing.setdefault(seen.fact.reason, []).append(seen.node)
    return have, [unknown(f"{subject} on {fold(nodes)}", reason) for reason, nodes in missing.items()]


def grouped(values: dict[str, Stack], key: Callable[[Stack], str]) -> dict[str, list[str]]:
    """Nodes by what `key` says of their software; nodes of which it says nothing are left out."""
    found: dict[str, list[str]] = {}
    for node, value in values.items():
        said = key(value)
        if said:
            found.setdefault(said, []).append(node)
    return found
