"""Which GPU a training script takes for its rank."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Unresolved
from preflight.judgement import Verdict, failed, not_applicable, passed, rule, unknown
from preflight.outcome import Severity
from preflight_rules.reading import certainly_several, quoted, ranks_started, why_unresolved
from preflight_rules.script_reading import launches_of, nodes_of, stated

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
        mask = next((c for c in job.about(_MASK) if c.span.path == chosen.span.path), None)
        listed = next((value for value in chosen.alternatives if isinstance(value, tuple)), ())
        missing = [index for index in listed if isinstance(index, int) and index >= len(listed)]
        if listed and not missing:
            yield passed(subject)
            continue
        if isinstance(chosen.value, Unresolved) and mask is not None and mask.condition:
            yield unknown(subject, f"{quoted(chosen)} depends on the branch `{mask.condition}`", at=chosen)
            continue
        seen = ",".join(map(str, listed))
        detail = (
            f"of the {len(listed)} GPUs left by `{seen}` there is no {' or '.join(map(str, missing))}: the first is 0"
            if listed
            else "the GPUs left are numbered from 0 again"
        )
        certain = bool(listed) and len(missing) == len(listed) and why_unresolved((chosen,)) is None
        yield failed(
            subject,
            f"{quoted(chosen)} takes a physical index out of the list in CUDA_VISIBLE_DEVICES, but {detail}.",
            at=chosen,
            also=((mask, "renumbers the GPUs"),) if mask is not None else (),
            remedy="Give the position in the list, which is the local rank: torch.cuda.set_device(local_rank).",
            severity=None if certain else Severity.WARNING,
        )
    if not met:
        yield not_applicable(job.name, "no GPU is chosen by an entry of a list that masks GPUs")


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
    for subject, chosen in stated(job, "device_of_global_rank"):
        launches = list(launches_of(job, chosen))
        met = True
        if not launches:
            yield unknown(subject, f"nothing says on how many nodes {quoted(chosen)} runs", at=chosen)
            continue
        verdicts = [_on(job, chosen, launch.id) for launch in launches]
        yield next((verdict for verdict in verdicts if verdict is not None), passed(subject))
    if not met:
        yield not_applicable(job.name, "no GPU is chosen by the global rank")


def _on(job: Job, chosen: Claim, launch_id: str) -> Verdict | None:
    launch = job.launch(launch_id)
    nodes = nodes_of(job, launch)
    processes = job.setting("processes_per_node", launch.scope)
    world, because = ranks_started(job, launch.scope)
    if isinstance(nodes, Unresolved):
        return unknown(launch.id, f"on how many nodes {quoted(chosen)} runs depends on {nodes.why}", at=chosen)
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
