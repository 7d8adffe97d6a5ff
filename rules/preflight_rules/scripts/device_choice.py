"""Which GPU a training script takes for its rank."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.job import Claim, Job, Plain, Unresolved
from preflight.job.value import Scalar
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity, Status
from preflight_rules.reading import certainly_several, numbers, quoted, ranks_started, why_unresolved
from preflight_rules.scripts.script_reading import launches_of, nodes_of, started_files, stated

_MASK = "env.CUDA_VISIBLE_DEVICES"


@rule(
    "TRN004",
    "physical-gpu-index-after-mask",
    severity=Severity.ERROR,
    profile="gate",
    evidence=(
        "pytorch/examples#885",
        "https://docs.nvidia.com/cuda/cuda-c-programming-guide/#cuda-environment-variables",
    ),
)
def physical_gpu_index_after_mask(job: Job) -> Iterator[Verdict]:
    """A GPU is chosen by its physical index after CUDA_VISIBLE_DEVICES has renumbered them.

    What it checks:
        Where a script sets CUDA_VISIBLE_DEVICES, the index given to `set_device`, `torch.device` or `device_ids` is
        not an entry of that list.

    Why it matters:
        The visible GPUs are numbered from 0 again. Index 4 of a list of four does not exist: "invalid device ordinal".
        It goes unnoticed as long as the list is 0,1,2,3.

    Example:
        `os.environ["CUDA_VISIBLE_DEVICES"] = "4,5,6,7"` and `torch.cuda.set_device(int(gpus[local_rank]))`.

    Fix:
        Use the position in the list, which is the local rank: `torch.cuda.set_device(local_rank)`.

    Known limits:
        Where the list is not written out, or some of its entries are small enough to exist, it is a warning.

    Evidence:
        pytorch/examples#885; CUDA programming guide, environment variables.
    """
    met = False
    for subject, chosen in stated(job, "device_of_masked_list"):
        met = True
        mask = _mask(job, chosen)
        listed = next((tuple(value) for value in chosen.alternatives if isinstance(value, tuple)), ())
        if not listed and mask is not None:
            listed = _listed(mask)
        missing = [index for index in listed if isinstance(index, int) and index >= len(listed)]
        if listed and not missing:
            yield passed(subject)
        elif isinstance(chosen.value, Unresolved) and mask is not None and mask.condition:
            yield unknown(subject, f"{quoted(chosen)} depends on the branch `{mask.condition}`", at=chosen)
        else:
            certain = bool(listed) and len(missing) == len(listed) and why_unresolved((chosen,)) is None
            yield _physical(subject, chosen, mask, listed, missing, None if certain else Severity.WARNING)
    for subject, chosen in stated(job, "device_index"):
        mask = _mask(job, chosen)
        listed, found = _listed(mask) if mask is not None else (), numbers(chosen.value)
        if mask is None or not listed or len(found) != 1:
            continue
        met = True
        if found[0] < len(listed):
            yield passed(subject)
        elif why_unresolved((chosen, mask)) is not None:
            yield unknown(subject, f"{quoted(chosen)} and {quoted(mask)} stand in branches", at=chosen)
        else:
            # A module may hold such a number for a run of another kind.
            sure = chosen.span.path in (*started_files(job), mask.span.path)
            severity = None if sure else Severity.WARNING
            yield _physical(subject, chosen, mask, listed, [found[0]], severity)
    if not met:
        yield not_applicable(job.name, "no GPU is chosen by an entry of a list that masks GPUs")


def _mask(job: Job, chosen: Claim) -> Claim | None:
    """What CUDA_VISIBLE_DEVICES is where a GPU is chosen: set in the script itself, else for its launch."""
    own = next((c for c in job.about(_MASK) if c.span.path == chosen.span.path), None)
    if own is not None:
        return own
    for launch in launches_of(job, chosen):
        found = job.setting(_MASK, launch.scope)
        if len(found) == 1:
            return found[0]
    return None


def _listed(mask: Claim) -> tuple[Scalar, ...]:
    """The indices in a mask that is written out."""
    found = mask.alternatives
    parts = str(found[0]).split(",") if len(found) == 1 else []
    if not parts or not all(part.strip().isdigit() and len(part) < 5 for part in parts):
        return ()
    return tuple(int(part) for part in parts)


def _physical(
    subject: str,
    chosen: Claim,
    mask: Claim | None,
    listed: tuple[Scalar, ...],
    missing: Sequence[Plain],
    severity: Severity | None,
) -> Verdict:
    seen = ",".join(map(str, listed))
    left = f"of the {len(listed)} GPUs left by `{seen}`" if len(listed) > 1 else f"beside the one GPU left by `{seen}`"
    detail = (
        f"{left} there is no {' or '.join(map(str, missing))}: the first is 0"
        if listed
        else "the GPUs left are numbered from 0 again"
    )
    return failed(
        subject,
        f"{quoted(chosen)} takes a physical index, as in the list in CUDA_VISIBLE_DEVICES, but {detail}.",
        at=chosen,
        also=((mask, "renumbers the GPUs"),) if mask is not None else (),
        remedy="Give the position in the list, which is the local rank: torch.cuda.set_device(local_rank).",
        severity=severity,
    )


@rule(
    "TRN005",
    "gpu-chosen-by-global-rank",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://docs.pytorch.org/docs/stable/elastic/run.html", "pytorch/examples#885"),
)
def gpu_chosen_by_global_rank(job: Job) -> Iterator[Verdict]:
    """A rank takes the GPU that has its global rank as number, on more than one node.

    What it checks:
        Where the ranks run on several nodes, several to a node, the index given to `set_device`, `torch.device` or
        `device_ids` is not the rank in the whole job.

    Why it matters:
        The second node's ranks begin at the number of GPUs of the first, and no GPU there has such a number:
        "invalid device ordinal" on all nodes but the first.

    Example:
        `torch.cuda.set_device(dist.get_rank())` and `torchrun --nnodes=2 --nproc_per_node=8`.

    Fix:
        Use the local rank: `torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))`.

    Known limits:
        A rank that is passed in from elsewhere cannot be told and stays silent. So does a script on one node.

    Evidence:
        torchrun documentation (RANK and LOCAL_RANK); pytorch/examples#885 (the same error).
    """
    met = False
    said: set[str] = set()
    for subject, chosen in stated(job, "device_of_global_rank"):
        launches = list(launches_of(job, chosen))
        met = True
        if not launches:
            yield unknown(subject, f"nothing says on how many nodes {quoted(chosen)} runs", at=chosen)
            continue
        verdicts = [_on(job, chosen, launch.id) for launch in launches]
        verdict = next((verdict for verdict in verdicts if verdict is not None), passed(subject))
        if verdict.status is Status.FAIL and chosen.span.path in said:
            # The rank that chooses the GPU is handed on (to the model, to DDP): one mistake, said once a script.
            continue
        said.update([chosen.span.path] if verdict.status is Status.FAIL else [])
        yield verdict
    if not met:
        yield not_applicable(job.name, "no GPU is chosen by the global rank")


def _on(job: Job, chosen: Claim, launch_id: str) -> Verdict | None:
    launch = job.launch(launch_id)
    nodes = nodes_of(job, launch)
    processes = job.setting("processes_per_node", launch.scope)
    world, because = ranks_started(job, launch.scope)
    if isinstance(nodes, Unresolved):
        return unknown(launch.id, f"on how many nodes {quoted(chosen)} runs is left open: {nodes.why}", at=chosen)
    if not certainly_several(nodes):
        return None
    if not processes or not certainly_several(world):
        return unknown(launch.id, "how many ranks run on each node is not known", at=chosen)
    if isinstance(processes[0].value, Unresolved) or chosen.condition or launch.condition:
        return unknown(launch.id, f"{quoted(chosen)} depends on what only run time knows", at=chosen)
    told = (*job.requiring("nodes", launch.scope), *job.setting("nodes", launch.scope), *because)
    return failed(
        launch.id,
        f"{quoted(chosen)} takes the global rank for the number of a GPU, but {quoted(told[0])} makes several nodes:"
        " from the second node on there is no GPU of that number.",
        at=chosen,
        also=((told[0], "several nodes"),),
        remedy='Take the local rank: torch.cuda.set_device(int(os.environ["LOCAL_RANK"])).',
    )
