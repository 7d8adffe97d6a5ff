"""MIG instances that are visible to a process."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Job
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided
from preflight.plugins.claim_text import quoted
from preflight.plugins.questions import subjects
from preflight_rules.launch.gpus import processes
from preflight_rules.launches import certainly_several

_VISIBLE_DEVICES = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
#: A MIG instance by its id, or by GPU and instance numbers.
_INSTANCE = re.compile(r"MIG-\S+", re.IGNORECASE)
#: Scheduler names of MIG profiles: `3g.40gb`, `nvidia_a100_3g.20gb`, `1g.10gb.me`.
_PROFILE = re.compile(r"(?:.*[_-])?[1-7]g\.\d+gb.*")


@rule(
    "ENV007",
    "several-mig-instances-for-one-process",
    severity=Severity.WARNING,
    otherwise="no launch makes MIG instances visible",
)
def several_mig_instances_for_one_process(job: Job) -> Iterator[Verdict]:
    """Several MIG instances are visible to one process, but CUDA enumerates only the first.

    What it checks: CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES with more than one `MIG-...`; a launcher that starts
    several ranks on a node for which the scheduler grants several MIG instances.

    Why it matters: A CUDA process sees one MIG instance, however many are visible. The rank that takes the second stops
    with "device >= 0 && device < num_gpus", and NCCL cannot connect two instances of one GPU in any case.

    Example: `CUDA_VISIBLE_DEVICES=MIG-6a0f...,MIG-2c31... torchrun --nproc_per_node=2 train.py`.

    Fix: Use whole GPUs for a distributed run, or start one process for each instance with its own CUDA_VISIBLE_DEVICES
    and a backend that needs no direct transfers (gloo).

    Known limits: A script that gives each child process its own instance is reported too.
    """
    seen: set[str] = set()
    for subject, scope, launch in subjects(job):
        for claim in (c for name in _VISIBLE_DEVICES for c in job.setting(f"env.{name}", scope)):
            values = texts(claim.value)
            counts = [len(_INSTANCE.findall(text.replace(",", " "))) for text in values]
            if not any(counts) or claim.spelling in seen:
                continue
            seen.add(claim.spelling)
            verdict = undecided(subject, (claim,), launch)
            if verdict is None and min(counts) > 1:
                verdict = failed(
                    subject,
                    f"{quoted(claim)} makes {counts[0]} MIG instances visible, but a process enumerates only the"
                    f" first.",
                    at=claim,
                    also=((launch, "sees them"),) if launch is not None else (),
                    remedy="Make one instance visible to each process, or use whole GPUs.",
                )
            yield verdict or passed(subject)
        kinds = job.setting("gpu_type", scope)
        if (
            launch is None
            or not kinds
            or not all(_PROFILE.fullmatch(t) for c in kinds for t in texts(c.value) or ("",))
        ):
            continue
        ranks, granted = processes(job, launch), job.setting("gpus_per_node", scope)
        verdict = undecided(subject, (*kinds, *ranks, *granted), launch)
        if (
            verdict is None
            and launch.launcher != "srun"
            and certainly_several(job_value(ranks))
            and certainly_several(job_value(granted))
        ):
            verdict = failed(
                subject,
                f"{quoted(kinds[0])} requests MIG instances, and {quoted(ranks[0])} starts "
                f"{numbers(job_value(ranks))[0]} ranks that share their list: each enumerates only the first.",
                at=kinds[0],
                also=((ranks[0], "ranks"),),
                remedy="Request whole GPUs, or start one process for each instance with its own CUDA_VISIBLE_DEVICES.",
            )
        yield verdict or passed(subject)
