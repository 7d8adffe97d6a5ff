"""Which devices a process is shown, where that cannot be what it needs."""

from __future__ import annotations

import re
from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.lazy.patterns import lazy_pattern
from preflight.outcome import Severity
from preflight_rules.reading import certainly_several, job_value, numbers, quoted, subjects, texts, undecided
from preflight_rules.starting.gpus import processes

_SHOWN = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
#: A MIG instance by its id, or by GPU and instance numbers.
_INSTANCE = lazy_pattern(r"MIG-\S+", re.IGNORECASE)
#: How schedulers name a kind of MIG instance: `3g.40gb`, `nvidia_a100_3g.20gb`, `1g.10gb.me`.
_PROFILE = lazy_pattern(r"(?:.*[_-])?[1-7]g\.\d+gb.*")


@rule(
    "ENV007",
    "several-mig-instances-for-one-process",
    severity=Severity.WARNING,
    evidence=(
        "pytorch/pytorch#130181",
        "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/#cuda-device-enumeration",
    ),
)
def several_mig_instances_for_one_process(job: Job) -> Iterator[Verdict]:
    """A process is shown several MIG instances, of which CUDA enumerates the first alone.

    What it checks:
        CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES with more than one `MIG-...`; a launcher that starts several
        ranks on a node for which the scheduler grants several MIG instances.

    Why it matters:
        A CUDA process sees one MIG instance, whatever it is shown. The rank that takes the second stops with
        "device >= 0 && device < num_gpus", and NCCL cannot connect two instances of one GPU in any case.

    Example:
        `CUDA_VISIBLE_DEVICES=MIG-6a0f...,MIG-2c31... torchrun --nproc_per_node=2 train.py`.

    Fix:
        Use whole GPUs for a distributed run, or start one process for each instance with its own
        CUDA_VISIBLE_DEVICES and a back end that needs no direct transfers (gloo).

    Known limits:
        A script that gives each child its own instance is not told apart.

    Evidence:
        pytorch/pytorch#130181; NVIDIA MIG user guide, CUDA device enumeration.
    """
    met = False
    seen: set[str] = set()
    for subject, scope, launch in subjects(job):
        for claim in (c for name in _SHOWN for c in job.setting(f"env.{name}", scope)):
            values = texts(claim.value)
            counts = [len(_INSTANCE.findall(text.replace(",", " "))) for text in values]
            if not any(counts) or claim.spelling in seen:
                continue
            met = True
            seen.add(claim.spelling)
            open_end = undecided(subject, (claim,), launch)
            if open_end is not None:
                yield open_end
            elif min(counts) > 1:
                yield failed(
                    subject,
                    f"{quoted(claim)} shows {counts[0]} MIG instances, but a process enumerates only the first.",
                    at=claim,
                    also=((launch, "sees them"),) if launch is not None else (),
                    remedy="Show each process one instance, or use whole GPUs.",
                )
            else:
                yield passed(subject)
        kinds = job.setting("gpu_type", scope)
        if (
            launch is None
            or not kinds
            or not all(_PROFILE.fullmatch(t) for c in kinds for t in texts(c.value) or ("",))
        ):
            continue
        met = True
        ranks, granted = processes(job, launch), job.setting("gpus_per_node", scope)
        open_end = undecided(subject, (*kinds, *ranks, *granted), launch)
        if open_end is not None:
            yield open_end
        elif (
            launch.launcher != "srun" and certainly_several(job_value(ranks)) and certainly_several(job_value(granted))
        ):
            yield failed(
                subject,
                f"{quoted(kinds[0])} grants MIG instances, and {quoted(ranks[0])} starts {numbers(job_value(ranks))[0]}"
                " ranks that share their list: each enumerates only the first.",
                at=kinds[0],
                also=((ranks[0], "ranks"),),
                remedy="Ask for whole GPUs, or start one process for each instance with its own CUDA_VISIBLE_DEVICES.",
            )
        else:
            yield passed(subject)
    if not met:
        yield not_applicable(job.name, "no process is shown MIG instances")
