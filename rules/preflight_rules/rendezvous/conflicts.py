"""Rendezvous arguments of one launch line that exclude each other or are ignored."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Strength
from preflight.model.job.claim import job_value
from preflight.model.job.value import numbers, texts
from preflight.plugins.authoring import Verdict, delete_word, failed, make_fix, passed, rule, undecided
from preflight.plugins.claim_text import joined, quoted
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with, required
from preflight_rules.launches import certainly_one, certainly_several, nodes_spanned


def _is_standalone(stated: Stated[Launch]) -> bool:
    return any(True in claim.alternatives for claim in stated.settings[0])


@rule(
    "RDV006",
    "standalone-on-several-nodes",
    severity=Severity.ERROR,
    otherwise="no launch uses --standalone",
    each=launches_with("standalone", required("nodes"), where=_is_standalone),
)
def standalone_on_several_nodes(question: LaunchQuestion) -> Verdict | None:
    """`--standalone` is given to a launch over several nodes.

    What it checks: `--standalone` is not combined with more than one node.

    Why it matters: `--standalone` replaces the rendezvous with one on localhost with its own port, whatever endpoint is
    given. Each node then waits for the others and gives up after the join timeout.

    Example: `torchrun --standalone --nnodes=2 --nproc_per_node=8 train.py`.

    Fix: Remove `--standalone` and give `--rdzv_backend=c10d --rdzv_endpoint=HOST:PORT`, or `--nnodes=1`.

    Known limits: Only `--nnodes` of the same launch is compared, not the size of the allocation.
    """
    standalone, nodes = question.of
    if not certainly_several(job_value(nodes)) or not all(c.alternatives == (True,) for c in standalone):
        return None
    count = joined(numbers(job_value(nodes)))
    return failed(
        question.subject,
        f"{quoted(standalone[0])} makes every node use its own localhost, but {quoted(nodes[0])}"
        f" needs {count} nodes to meet: each waits alone until it times out.",
        at=standalone[0],
        also=((nodes[0], f"{count} nodes"),),
        remedy="Replace --standalone with --rdzv_backend=c10d --rdzv_endpoint=HOST:PORT, or set --nnodes=1.",
        waits_at="rendezvous",
    )


#: Ignored arguments, the argument that overrides each, and what is used instead.
_IGNORED_BY_ENDPOINT = ("unused_master_addr", "unused_master_port")


@rule(
    "RDV007",
    "rendezvous-argument-ignored",
    severity=Severity.WARNING,
    fix="safe",
    otherwise="no torchrun launch chooses its rendezvous",
)
def rendezvous_argument_ignored(job: Job) -> Iterator[Verdict]:
    """A rendezvous argument is given that torchrun does not use.

    What it checks: `--master_addr`, `--master_port` and `--node_rank` together with a dynamic backend
    (`--rdzv_backend=c10d`), and `--master_addr` together with `--rdzv_endpoint` under the static one.

    Why it matters: The argument looks as if it set the rendezvous, but changing it has no effect. Without an endpoint,
    c10d falls back to localhost although a master address is given.

    Example: `torchrun --rdzv_backend=c10d --master_addr=$MASTER_ADDR --master_port=6000 ...`.

    Fix: With c10d give `--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT`; with static leave the backend out.

    Known limits: An argument that agrees with the endpoint is harmless and not reported; on one node it is advice.
    """
    for launch in job.launches:
        if launch.launcher not in ("torchrun", "torch.distributed.launch"):
            continue
        backend = job.setting("rendezvous_backend", launch.scope)
        endpoint = _flags(job, launch, "rendezvous_endpoint")
        if not backend and not endpoint:
            continue
        if undecided_verdict := undecided(launch.id, backend, launch):
            yield undecided_verdict
            continue
        dynamic = bool(backend) and all("static" not in texts(c.value) for c in backend)
        found = list(_ignored(job, launch, endpoint, backend[0] if dynamic else None))
        yield from found
        if not found:
            yield passed(launch.id)


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
            if endpoint and _agrees(claim, endpoint[0]):
                continue
            used = f"{quoted(endpoint[0])} is used" if endpoint else "the endpoint is then localhost"
            yield failed(
                launch.id,
                f"{quoted(claim)} has no effect with {quoted(winner)}: {used}.",
                at=claim,
                also=((winner, "decides"),),
                remedy="Give the address as --rdzv_endpoint=HOST:PORT, or remove --rdzv_backend and --rdzv_endpoint, "
                "and remove the unused options.",
                severity=Severity.INFO if certainly_one(nodes_spanned(job, launch)[0]) else None,
                fix=make_fix(f"drop {claim.spelling}, which is unused", delete_word(claim), safe=True)
                if endpoint
                else None,
            )
    if dynamic is not None:
        for claim in _flags(job, launch, "node_rank"):
            yield failed(
                launch.id,
                f"{quoted(claim)} has no effect with {quoted(dynamic)}: the backend assigns node ranks itself.",
                at=claim,
                also=((dynamic, "decides"),),
                remedy="Drop it, or use the static backend if the order of nodes matters.",
                severity=Severity.INFO,
                fix=make_fix("drop the node rank, which has no effect", delete_word(claim), safe=True),
            )


def _agrees(claim: Claim, endpoint: Claim) -> bool:
    """Whether the endpoint contains the unused argument anyway, or both are unknown."""
    ends = texts(endpoint.value)
    if not ends:
        name = claim.spelling.replace("=", " ").split()[-1].strip("\"'${}")
        return bool(name) and name in endpoint.spelling
    return all(str(value) in end for end in ends for value in claim.alternatives) and bool(claim.alternatives)
