"""What the checks of GPU software share: the framework of the job, and the comparison of versions."""

from __future__ import annotations

from collections.abc import Callable

from preflight.model.job import Job
from preflight.model.recording import Facts, Observed
from preflight.plugins.authoring import Verdict, not_applicable, unknown
from preflight_checks.gpus.presence import plan_gpus, runs_without_gpus
from preflight_checks.planning import combined, on_every_node
from preflight_checks.probes.stack import Build, Stack, stack
from preflight_checks.requirements.backends import gpu_claims
from preflight_checks.requirements.hosts import fold

COST = "reads files of the installed framework and loads libcuda in the ranks' interpreter; a second or two"
#: Launchers that start only one framework.
_OF_LAUNCHER = {
    "torchrun": "torch",
    "torch.distributed.launch": "torch",
    "deepspeed": "torch",
    "accelerate": "torch",
    "paddle.distributed.launch": "paddle",
    "fleetrun": "paddle",
}


plan_software = on_every_node(stack, needed_by=gpu_claims, context=True, required=True, deadline_s=9.0)


plan_stack = combined(plan_gpus, plan_software)


def build_of(job: Job, software: Stack) -> Build | None:
    """The framework that the job trains with, or the first installed one if the launcher does not determine it."""
    installed = {build.framework: build for build in software.builds}
    for launch in job.launches:
        wanted = _OF_LAUNCHER.get(launch.launcher, "")
        if wanted in installed:
            return installed[wanted]
    return software.builds[0] if software.builds else None


def observed_software(job: Job, facts: Facts, subject: str) -> tuple[dict[str, Stack], list[Verdict]]:
    """The software by node, and the verdicts if it is missing or the job needs no GPU."""
    if not gpu_claims(job):
        return {}, [not_applicable(subject, "nothing in the job requests GPUs")]
    if runs_without_gpus(job, facts):
        return {}, [not_applicable(subject, "no node has a GPU, and the job falls back to another backend")]
    observed: dict[str, Stack] = {}
    missing: dict[str, list[str]] = {}
    for seen in facts.each(stack):
        if isinstance(seen.fact, Observed):
            observed[seen.node] = seen.fact.value
        else:
            missing.setdefault(seen.fact.reason, []).append(seen.node)
    return observed, [unknown(f"{subject} on {fold(nodes)}", reason) for reason, nodes in missing.items()]


def grouped(values: dict[str, Stack], key: Callable[[Stack], str]) -> dict[str, list[str]]:
    """Nodes grouped by `key` of their software; nodes with an empty key are left out."""
    found: dict[str, list[str]] = {}
    for node, value in values.items():
        value_key = key(value)
        if value_key:
            found.setdefault(value_key, []).append(node)
    return found
