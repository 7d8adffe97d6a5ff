"""Starts of one program that run at the same time: their ranks, sizes and GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Launch
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided
from preflight.plugins.claim_text import argument_of, quoted, where
from preflight_rules.launches import is_same_line_again, starting_file, waited_between
from preflight_rules.rendezvous.siblings import RankedProcess, first_difference, groups, peers, processes_of_ranks

_BATCHES = {
    "given_batch_size": "the batch size",
    "micro_batch_size_per_gpu": "the batch size of a rank",
    "train_batch_size": "the global batch size",
    "gradient_accumulation_steps": "the gradient accumulation",
}
#: What starts its command on another host.
_ELSEWHERE = frozenset({"sbatch", "qsub", "bsub", "ssh", "pdsh", "clush", "srun", "mpirun", "horovodrun", "kubectl"})


@rule(
    "LCH010",
    "rank-started-twice",
    severity=Severity.ERROR,
    otherwise="no two processes with a rank are started at the same time",
)
def rank_started_twice(job: Job) -> Iterator[Verdict]:
    """Two processes of one job that run at the same time have the same rank, or expect different numbers of ranks.

    What it checks: Starts of one program in the background of one script, or from a separate script each, give each
    process its own rank (RANK, or the program's `--rank`) and the same number of ranks, and every rank is below it.

    Why it matters: Both processes register at the store with the same rank. One of them stops, or all wait for the
    missing rank until the rendezvous times out.

    Example: `RANK=0 python train.py &` twice, with WORLD_SIZE=2.

    Fix: Give each process its own rank, from 0 on, and all the same number of ranks.

    Known limits: Starts that run one after the other are separate runs. A rank whose start is in another file is not
    known, so a missing one is not reported.
    """
    for processes in processes_of_ranks(job):
        yield _sizes(processes)
        yield _ranks_verdict(processes)


def _sizes(processes: Sequence[RankedProcess]) -> Verdict:
    subject = f"{processes[0].launch.id} and {len(processes) - 1} more: number of ranks"
    different = first_difference(subject, [(p.launch, p.size) for p in processes], "the number of ranks")
    if different is None or isinstance(different, Verdict):
        return different or passed(subject)
    _, odd, common_launch, common = different
    return failed(
        subject,
        f"{quoted(odd[0])} here and {quoted(common[0])} in {where(common[0])} give the number of ranks of one job"
        " different values: each process waits for a different number of peers.",
        at=odd[0],
        also=((argument_of(common[0]) or common[0], f"process started by {common_launch.id}"),),
        remedy="Give every process the same number of ranks.",
        waits_at="rendezvous",
    )


def _ranks_verdict(processes: Sequence[RankedProcess]) -> Verdict:
    subject = f"{processes[0].launch.id} and {len(processes) - 1} more"
    if undecided_verdict := undecided(
        subject, [claim for process in processes for claim in (*process.rank, *process.size)]
    ):
        return undecided_verdict
    seen: dict[int, Claim] = {}
    for process in processes:
        claim, most = process.rank[0], max(numbers(job_value(process.size)), default=0)
        rank = min(numbers(claim.value), default=-1)
        if rank in seen:
            first = seen[rank]
            elsewhere = where(first) if where(first) != where(claim) else ""
            return failed(
                subject,
                f"{quoted(claim)} is also the rank of the process of {elsewhere}, which runs at the same time."
                if elsewhere
                else f"{quoted(claim)} gives two processes that run at the same time rank {rank}.",
                at=claim,
                also=((argument_of(first) or first, f"rank {rank} already"),),
                remedy=f"Give each of the {len(processes)} processes its own rank, from 0 to {most - 1}.",
                waits_at="rendezvous",
            )
        if rank >= most > 0:
            return failed(
                subject,
                f"{quoted(claim)} is not a rank of {quoted(process.size[0])}: ranks go from 0 to {most - 1}.",
                at=claim,
                also=(process.size[0],),
                remedy=f"Use a rank from 0 to {most - 1}, each once.",
            )
        seen[rank] = claim
    return passed(subject)


@rule(
    "LCH011",
    "batch-differs-between-starts",
    severity=Severity.WARNING,
    confidence=Confidence.HIGH,
    otherwise="no two starts of one job give a batch size",
)
def batch_differs_between_starts(job: Job) -> Iterator[Verdict]:
    """The starts of one job's nodes or ranks give them different batch sizes.

    What it checks: Launch lines of one program for different nodes, starts of one program with different ranks, and
    trainers of one parameter-server job give the same batch size and gradient accumulation.

    Why it matters: Ranks with smaller batches take more steps for the same data. The others finish first, and the
    remaining ones wait in a collective until it times out. Gradients are averaged with the wrong weights.

    Example: `ssh a bash run.sh 0 8 &` and `ssh b bash run.sh 1 16 &`, where the second argument is the batch size.

    Fix: Give all starts the same batch size, or set it once in the script that they run.

    Known limits: A program that is made for GPUs of different sizes may want different batches.
    """
    started = [tuple(process.launch for process in processes) for processes in processes_of_ranks(job)]
    for group in (*groups(job), *started, *peers(job)):
        for quantity, meaning in _BATCHES.items():
            stated = [(launch, claims) for launch in group if (claims := job.setting(quantity, launch.scope))]
            if len(stated) < 2:
                continue
            yield _batches(f"{group[0].id} and {len(group) - 1} more: {meaning}", stated, meaning)


def _batches(subject: str, stated: Sequence[tuple[Launch, tuple[Claim, ...]]], meaning: str) -> Verdict:
    different = first_difference(subject, stated, meaning)
    if different is None or isinstance(different, Verdict):
        return different or passed(subject)
    _, odd, common_launch, common = different
    return failed(
        subject,
        f"{quoted(odd[0])} here and {quoted(common[0])} in {where(common[0])} give {meaning} of one job different"
        " values: ranks take different numbers of steps, and the last ones wait for the others.",
        at=odd[0],
        also=((argument_of(common[0]) or common[0], f"started by {common_launch.id}"),),
        remedy=f"Give {meaning} the same value on every line that starts a node or rank.",
        waits_at="collective",
    )


@rule(
    "LCH012",
    "gpu-given-to-two-starts",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two launches with GPUs of their own are started at the same time",
)
def gpu_given_to_two_starts(job: Job) -> Iterator[Verdict]:
    """Two launches that run at the same time on one host are given the same GPU.

    What it checks: Launches that one script starts in the background on its own host have no GPU of
    CUDA_VISIBLE_DEVICES in common.

    Why it matters: Both allocate their memory on it: the second one runs out of memory, or both are slow. Two ranks of
    one job on one GPU make NCCL stop with "Duplicate GPU detected".

    Example: `CUDA_VISIBLE_DEVICES=0,1 bash run.sh &` and `CUDA_VISIBLE_DEVICES=1,2 bash run.sh &`.

    Fix: Give each launch its own GPUs.

    Known limits: Launches on other hosts (ssh, srun) and launches one after the other are not compared, and neither are
    parameter servers of Paddle, which work on the CPU. Some programs share a GPU on purpose, such as small evaluations.
    """
    users: list[tuple[Launch, Claim]] = []
    for launch in job.launches:
        visible = job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)
        if not visible or not launch.concurrent or _ELSEWHERE.intersection(launch.wrappers):
            continue
        if {text for claim in job.setting("ps_role", launch.scope) for text in texts(claim.value)} == {"PSERVER"}:
            # FLU025 judges whether it uses a GPU at all.
            continue
        for other, claim in users:
            if starting_file(other) != starting_file(launch) or is_same_line_again(other, launch):
                continue
            if waited_between(job, other, launch):
                yield passed(launch.id)
            else:
                undecided_verdict = undecided(launch.id, (visible[0], claim), launch)
                yield undecided_verdict or _devices(launch, visible[0], claim)
        users.append((launch, visible[0]))


def _devices(launch: Launch, claim: Claim, other: Claim) -> Verdict:
    shared = _listed_devices(claim) & _listed_devices(other)
    if not shared:
        return passed(launch.id)
    named = ", ".join(sorted(shared))
    return failed(
        launch.id,
        f"{quoted(claim)} gives this launch GPU {named}, which {quoted(other)} in {where(other)} gives to another"
        f" launch that runs at the same time.",
        at=claim,
        also=((other, f"GPU {named} already"),),
        remedy="Give each launch its own GPUs.",
    )


def _listed_devices(claim: Claim) -> frozenset[str]:
    """The devices that a claim about CUDA_VISIBLE_DEVICES certainly lists; "-1" and an empty list hide all."""
    lists = [{part.strip() for part in text.split(",")} - {"", "-1"} for text in texts(claim.value)]
    return frozenset(set.intersection(*lists)) if lists else frozenset()
