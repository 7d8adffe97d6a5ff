"""Options and files that `accelerate launch` rejects before it starts anything."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Strength
from preflight.model.job.value import texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, unknown
from preflight_rules.helpers import placed, quoted, undecided
from preflight_rules.launch.accelerate import Setup, setups


@rule(
    "ACC009",
    "accelerate-options-exclude-each-other",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no Accelerate launch has a distribution option",
    evidence=(
        (
            "accelerate, commands/launch.py (`_validate_launch_command`) of 1.10 and 1.15",
            "https://github.com/huggingface/accelerate/blob/v1.10.1/src/accelerate/commands/launch.py",
        ),
    ),
)
def accelerate_options_exclude_each_other(job: Job) -> Iterator[Verdict]:
    """`accelerate launch` is given options that exclude each other.

    What it checks: At most one of --multi_gpu, --use_deepspeed and --use_fsdp; with --multi_gpu at least two processes;
    with distributed_type MULTI_GPU on one machine at least two GPUs in gpu_ids.

    Why it matters: Accelerate stops with a ValueError: "You can only use one of ...", "You need to use at least 2
    processes to use `--multi_gpu`", "Less than two GPU ids were configured".

    Example: `accelerate launch --multi_gpu --use_deepspeed ... train.py`.

    Fix: Keep the intended one: `--use_deepspeed` and `--use_fsdp` run on several GPUs by themselves.

    Known limits: gpu_ids is only checked together with a configuration that sets MULTI_GPU; in one that no launch names
    it is a warning.
    """
    for setup in setups(job):
        kinds = setup.claims("distributed_type")
        if not kinds:
            continue
        undecided_verdict = undecided(setup.subject, kinds, setup.launch)
        yield undecided_verdict if undecided_verdict is not None else _options_verdict(setup, kinds)


def _options_verdict(setup: Setup, kinds: tuple[Claim, ...]) -> Verdict:
    first = kinds[0]
    if len({text for claim in kinds for text in texts(claim.value)}) > 1:
        return failed(
            setup.subject,
            f"{quoted(first)} and {quoted(kinds[1])} exclude each other: accelerate stops.",
            at=kinds[1],
            also=((first, "the other"),),
            remedy="Keep one: --use_deepspeed and --use_fsdp run on several GPUs by themselves.",
        )
    world = setup.claims("world_size")
    flagged = first.strength >= Strength.FLAG and first.alternatives == ("MULTI_GPU",)
    total = setup.number("world_size")
    unresolved = undecided(setup.subject, world, setup.launch) if flagged else None
    if unresolved is not None:
        return unresolved
    if flagged and total is not None and total < 2 and world[0].strength >= Strength.FLAG:
        return failed(
            setup.subject,
            f"{quoted(first)} needs at least two processes, but {placed(world[0])} gives one: accelerate stops.",
            at=first,
            also=((world[0], "one process"),),
            remedy="Drop --multi_gpu, or start more processes.",
        )
    devices = setup.claims("env.CUDA_VISIBLE_DEVICES")
    names = [name for claim in devices for text in texts(claim.value) for name in text.split(",") if name.strip()]
    here = setup.number("nodes") in (None, 1) and first.alternatives == ("MULTI_GPU",) and not flagged
    if here and len(devices) == 1 and len(names) == 1:
        return failed(
            setup.subject,
            f"{quoted(devices[0])} names one GPU, but {placed(first)} needs at least two on one machine: accelerate"
            " stops.",
            at=devices[0],
            also=((first, "several GPUs"),),
            remedy="Name two GPUs or more, or write `distributed_type: 'NO'`.",
            severity=Severity.WARNING if setup.launch is None else None,
        )
    return passed(setup.subject)


@rule(
    "ACC010",
    "accelerate-deepspeed-file-without-zero",
    severity=Severity.ERROR,
    profile="gate",
    otherwise="no launch passes a DeepSpeed file to Accelerate",
    evidence=(
        ("Accelerate's guide to DeepSpeed", "https://huggingface.co/docs/accelerate/usage_guides/deepspeed"),
        "accelerate/utils/dataclasses.py of 1.15 (DeepSpeedPlugin)",
    ),
)
def accelerate_deepspeed_file_without_zero(job: Job) -> Iterator[Verdict]:
    """A DeepSpeed file given to Accelerate has no `zero_optimization` section.

    What it checks: The file that deepspeed_config_file (option or key) names has zero_optimization.

    Why it matters: Accelerate stops every rank with "Please specify the ZeRO optimization config in the DeepSpeed
    config".

    Example: `--deepspeed_config_file ds.json` with `{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}`.

    Fix: Add `"zero_optimization": {"stage": 2}`; stage 0 for none.

    Known limits: A file that Hugging Face's trainer gets through its own `--deepspeed` needs no such section.
    """
    read = {file.path for file in job.files if file.kind == "deepspeed"}
    for launch in job.launches:
        for target in _files(job, launch):
            if target not in read:
                continue
            keys = [c for c in job.about("deepspeed_key", launch.scope) if c.span.path == target]
            names = [text for claim in keys for text in texts(claim.value)]
            broken = [note for note in job.notes if note.span.path == target]
            if "zero_optimization" in names:
                yield passed(launch.id)
            elif not keys or broken:
                yield unknown(launch.id, f"{target} could not be read completely")
            else:
                yield failed(
                    launch.id,
                    f"{target} has no `zero_optimization`, which Accelerate requires: every rank stops.",
                    at=keys[0],
                    also=((launch, "started here"),),
                    remedy='Add `"zero_optimization": {"stage": 2}` (stage 0 for none).',
                )


def _files(job: Job, launch: Launch) -> list[str]:
    """The DeepSpeed files that Accelerate itself is given: by its option, or by its configuration."""
    own = {claim.span.path for claim in job.about("accelerate_key", launch.scope)}
    found = []
    for reference in job.references:
        if reference.role != "config" or reference.scope != launch.scope:
            continue
        line = reference.span.snippet[: reference.span.end_column]
        if reference.span.path in own or "--deepspeed_config_file" in line or "--deepspeed-config-file" in line:
            found.append(reference.target)
    return list(dict.fromkeys(found))
