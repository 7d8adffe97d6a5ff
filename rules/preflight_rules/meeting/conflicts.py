"""Rendezvous arguments of one launch line that exclude each other or go unused."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.job import Claim, Job, Launch, Strength
from preflight.judgement import Verdict, dropped, failed, mend, not_applicable, passed, rule
from preflight.outcome import Severity
from preflight_rules.reading import (
    certainly_one,
    certainly_several,
    job_value,
    nodes_spanned,
    numbers,
    quoted,
    spoken,
    texts,
    undecided,
)


@rule(
    "RDV006",
    "standalone-on-several-nodes",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("https://docs.pytorch.org/docs/stable/elastic/run.html", "pytorch/pytorch#76367"),
)
def standalone_on_several_nodes(job: Job) -> Iterator[Verdict]:
    """`--standalone` is given to a launch over several nodes.

    What it checks:
        That `--standalone` does not stand together with a number of nodes above one.

    Why it matters:
        `--standalone` replaces the rendezvous by one on localhost with a port of its own, whatever endpoint is
        given. Each node then waits alone for the others and gives up after the join time-out.

    Example:
        `torchrun --standalone --nnodes=2 --nproc_per_node=8 train.py`.

    Fix:
        Leave `--standalone` out and give `--rdzv_backend=c10d --rdzv_endpoint=HOST:PORT`, or `--nnodes=1`.

    Known limits:
        Only `--nnodes` of the same launch is compared, not the size of the allocation.

    Evidence:
        torchrun documentation; torch.distributed.run sets endpoint, id and back end itself under --standalone.
    """
    met = False
    for launch in job.launches:
        standalone = job.setting("standalone", launch.scope)
        nodes = job.requiring("nodes", launch.scope)
        if not standalone or not nodes or not any(True in claim.alternatives for claim in standalone):
            continue
        met = True
        open_end = undecided(launch.id, (*standalone, *nodes), launch)
        if open_end is not None:
            yield open_end
        elif certainly_several(job_value(nodes)) and all(c.alternatives == (True,) for c in standalone):
            count = spoken(numbers(job_value(nodes)))
            yield failed(
                launch.id,
                f"{quoted(standalone[0])} makes every node meet on its own localhost, but {quoted(nodes[0])} needs"
                f" {count} nodes to meet: each waits alone until it times out.",
                at=standalone[0],
                also=((nodes[0], f"{count} nodes"),),
                remedy="Replace --standalone by --rdzv_backend=c10d --rdzv_endpoint=HOST:PORT, or set --nnodes=1.",
                waits_at="rendezvous",
            )
        else:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no launch is --standalone")


#: What is ignored, in the presence of what, and what is used instead.
_IGNORED_BY_ENDPOINT = ("unused_master_addr", "unused_master_port")


@rule(
    "RDV007",
    "rendezvous-argument-ignored",
    severity=Severity.WARNING,
    fix="safe",
    evidence=("QwenAudio/CosyVoice#241", "pytorch/pytorch#76367"),
)
def rendezvous_argument_ignored(job: Job) -> Iterator[Verdict]:
    """A rendezvous argument is given that torchrun does not use.

    What it checks:
        `--master_addr`, `--master_port` and `--node_rank` together with a dynamic back end
        (`--rdzv_backend=c10d`), and `--master_addr` together with `--rdzv_endpoint` under the static one.

    Why it matters:
        The argument looks as if it decided where the nodes meet; whoever changes it later wonders why nothing
        changes. Without an endpoint, c10d falls back to localhost although a master address is given.

    Example:
        `torchrun --rdzv_backend=c10d --master_addr=$MASTER_ADDR --master_port=6000 ...`.

    Fix:
        With c10d give `--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT`; with static leave the back end out.

    Known limits:
        An argument that says the same as the endpoint is harmless and stays silent; on one node it is advice.

    Evidence:
        QwenAudio/CosyVoice#241, pytorch/pytorch#76367; torch.distributed.run, get_rdzv_endpoint.
    """
    met = False
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        endpoint = _flags(job, launch, "rendezvous_endpoint")
        if not backend and not endpoint:
            continue
        met = True
        open_end = undecided(launch.id, backend, launch)
        if open_end is not None:
            yield open_end
            continue
        dynamic = bool(backend) and all("static" not in texts(c.value) for c in backend)
        found = list(_ignored(job, launch, endpoint, backend[0] if dynamic else None))
        yield from found
        if not found:
            yield passed(launch.id)
    if not met:
        yield not_applicable(job.name, "no torchrun launch chooses its rendezvous")


def _flags(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    """Claims that the user wrote on this launch line."""
    return tuple(
        c for c in job.setting(quantity, launch.scope) if c.scope.launch == launch.id and c.strength is Strength.FLAG
    )


def _ignored(job: Job, launch: Launch, endpoint: tuple[Claim, ...], dynamic: Claim | None) -> Iterator[Verdict]:
    winner = dynamic if dynamic is not None else (endpoint[0] if endpoint else None)
    if winner is None:
        return
    for quantity in _IGNORED_BY_ENDPOINT:
        for claim in _flags(job, launch, quantity):
            if endpoint and _says_the_same(claim, endpoint[0]):
                continue
            used = f"{quoted(endpoint[0])} is used" if endpoint else "the endpoint is then localhost"
            yield failed(
                launch.id,
                f"{quoted(claim)} has no effect with {quoted(winner)}: {used}.",
                at=claim,
                also=((winner, "decides"),),
                remedy="Give the address as --rdzv_endpoint=HOST:PORT, or leave --rdzv_backend and --rdzv_endpoint"
                " out; drop what is unused.",
                severity=Severity.INFO if certainly_one(nodes_spanned(job, launch)[0]) else None,
                fix=mend(f"drop {claim.spelling}, which is unused", dropped(claim), safe=True) if endpoint else None,
            )
    if dynamic is not None:
        for claim in _flags(job, launch, "node_rank"):
            yield failed(
                launch.id,
                f"{quoted(claim)} has no effect with {quoted(dynamic)}: the back end gives out node ranks itself.",
                at=claim,
                also=((dynamic, "decides"),),
                remedy="Drop it, or use the static back end if the order of nodes matters.",
                severity=Severity.INFO,
                fix=mend("drop the node rank, which has no effect", dropped(claim), safe=True),
            )


def _says_the_same(claim: Claim, endpoint: Claim) -> bool:
    """Whether the unused argument is part of the endpoint anyway (or both cannot be told)."""
    ends = texts(endpoint.value)
    if not ends:
        name = claim.spelling.replace("=", " ").split()[-1].strip("\"'${}")
        return bool(name) and name in endpoint.spelling
    return all(str(value) in end for end in ends for value in claim.alternatives) and bool(claim.alternatives)
