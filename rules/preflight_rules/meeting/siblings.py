"""Launch lines of one job that belong together, one for each node, and must say the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from preflight.job import Claim, Job, Launch, Strength
from preflight.judgement import Verdict, failed, not_applicable, passed, rule
from preflight.outcome import Severity
from preflight_rules.reading import (
    SPREADING_WRAPPERS,
    certainly_several,
    host_of,
    is_loopback,
    job_value,
    nodes_spanned,
    numbers,
    placed,
    quoted,
    texts,
    undecided,
    where,
)

_SHARED = {
    "rendezvous_endpoint": "the rendezvous endpoint",
    "rendezvous_id": "the rendezvous id",
    "rendezvous_backend": "the rendezvous back end",
    "master_addr": "the master address",
    "master_port": "the master port",
    "nodes": "the number of nodes",
}


def node_launches(job: Job) -> tuple[Launch, ...]:
    """The launches that each start one node of the same group: several nodes, a node rank, one program.

    A launch that srun or mpirun spreads over the nodes is a whole group of its own.
    """
    found = []
    for launch in job.launches:
        nodes, _ = nodes_spanned(job, launch)
        ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.DEFAULT]
        if ranks and certainly_several(nodes) and not SPREADING_WRAPPERS.intersection(launch.wrappers):
            found.append(launch)
    return tuple(found)


def groups(job: Job) -> Iterator[tuple[Launch, ...]]:
    """Node launches of one program with different node ranks; two lines of equal rank in one file are two runs."""
    by_program: dict[tuple[str, str], list[Launch]] = {}
    for launch in node_launches(job):
        by_program.setdefault((launch.launcher, launch.program), []).append(launch)
    for found in by_program.values():
        if len(found) > 1:
            yield tuple(found)


def _deciding(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    return job.requiring(quantity, launch.scope) or job.setting(quantity, launch.scope)


@rule(
    "RDV004",
    "rendezvous-differs-between-launches",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("hiyouga/LlamaFactory#7326", "pytorch/pytorch#76367"),
)
def rendezvous_differs_between_launches(job: Job) -> Iterator[Verdict]:
    """The launch lines for the nodes of one job do not lead to one rendezvous.

    What it checks:
        Launch lines of one program that carry different node ranks agree about the master address and port, the
        rendezvous endpoint, id and back end, and the number of nodes.

    Why it matters:
        A node with another address, port or id waits in an empty room until its rendezvous times out, and so do
        all the others.

    Example:
        `node0.sh` with `--master_port=29500` and `node1.sh` with `--master_port=29501`.

    Fix:
        Put what the nodes share into one file that both scripts source, and pass only the node rank.

    Known limits:
        Sibling files that were not named together on the command line form a probable job, so the finding is a
        warning there. Lines with the same node rank are taken for two separate runs.

    Evidence:
        hiyouga/LlamaFactory#7326 (each node exported its own MASTER_ADDR), pytorch/pytorch#76367.
    """
    met = False
    for group in groups(job):
        if len(_known_ranks(job, group)) < 2:
            continue
        met = True
        for quantity, meaning in _SHARED.items():
            verdict = _shared(job, group, quantity, meaning)
            if verdict is not None:
                yield verdict
    if not met:
        yield not_applicable(job.name, "no two launch lines start nodes of one group")


def _known_ranks(job: Job, group: Iterable[Launch]) -> set[int]:
    return {n for launch in group for n in numbers(job_value(job.setting("node_rank", launch.scope)))}


def _is_rank_0_itself(job: Job, launch: Launch, claims: Iterable[Claim]) -> bool:
    """Whether node 0 names itself by a loopback address: its store listens on all, and the others dial its name."""
    hosts = [host_of(text) for text in texts(job_value(claims))]
    ranks = numbers(job_value(job.setting("node_rank", launch.scope)))
    return ranks == (0,) and bool(hosts) and all(is_loopback(host) for host in hosts)


def _shared(job: Job, group: Sequence[Launch], quantity: str, meaning: str) -> Verdict | None:
    said = [(launch, _deciding(job, launch, quantity)) for launch in group]
    said = [(launch, claims) for launch, claims in said if claims and not _is_rank_0_itself(job, launch, claims)]
    if len(said) < 2:
        return None
    subject = f"{group[0].id} and {len(group) - 1} more"
    first, first_claims = said[0]
    for launch, claims in said[1:]:
        open_end = undecided(subject, (*first_claims, *claims), what=meaning)
        if open_end is not None:
            return open_end
        one, other = job_value(first_claims), job_value(claims)
        ours, theirs = set(numbers(one) or texts(one)), set(numbers(other) or texts(other))
        if ours and theirs and not ours & theirs:
            return failed(
                subject,
                f"{quoted(first_claims[0])} here and {quoted(claims[0])} in {where(claims[0])} give {meaning} of one"
                " job two values: the two nodes will not find each other.",
                at=first_claims[0],
                also=((claims[0], f"node launched by {launch.id}"),),
                remedy=f"Give {meaning} the same value in {first.span.path} and {launch.span.path}.",
                waits_at="rendezvous",
            )
    return passed(subject)


@rule(
    "RDV005",
    "node-rank-twice-or-missing",
    severity=Severity.ERROR,
    profile="gate",
    evidence=("pytorch/pytorch#76367", "Lightning-AI/pytorch-lightning#4389"),
)
def node_rank_twice_or_missing(job: Job) -> Iterator[Verdict]:
    """The node ranks of a job's launch lines are not 0 to n-1, each once.

    What it checks:
        Node ranks are below the number of nodes; and where launch lines in different files carry them, no rank
        occurs twice and, if there are as many lines as nodes, none is missing.

    Why it matters:
        A rank that occurs twice collides at the store; one that is missing keeps everybody waiting until the
        rendezvous times out; one out of range is refused at once.

    Example:
        `--nnodes=2 --node_rank=1` in both node0.sh and node1.sh, or `--nnodes=2 --node_rank=2`.

    Fix:
        Count node ranks from 0, one for each node.

    Known limits:
        A rank missing because its launch line lies elsewhere (fewer lines than nodes) is not reported. Equal
        ranks in one file are taken for two runs one after the other, but for services of a compose file, as many as
        there are nodes.

    Evidence:
        pytorch/pytorch#76367, Lightning-AI/pytorch-lightning#4389.
    """
    launches = node_launches(job)
    for launch in launches:
        yield _in_range(job, launch)
    for group in groups(job):
        if len({launch.span.path for launch in group}) == len(group) or _services(job, group):
            yield _each_once(job, group)
    if not launches:
        yield not_applicable(job.name, "no launch line carries a node rank")


def _services(job: Job, group: Sequence[Launch]) -> bool:
    """Whether these are the nodes of one job as services of a compose file, which all run at the same time."""
    kinds = {file.path: file.kind for file in job.files}
    if any(kinds.get(launch.span.path) != "compose" for launch in group):
        return False
    return all(set(numbers(nodes_spanned(job, launch)[0])) == {len(group)} for launch in group)


def _in_range(job: Job, launch: Launch) -> Verdict:
    ranks = job.setting("node_rank", launch.scope)
    nodes, because = nodes_spanned(job, launch)
    open_end = undecided(launch.id, ranks, launch)
    if open_end is not None:
        return open_end
    found, most = numbers(job_value(ranks)), max(numbers(nodes))
    if found and all(rank >= most or rank < 0 for rank in found):
        return failed(
            launch.id,
            f"{quoted(ranks[0])} is no rank of {placed(because[0])}: node ranks go from 0 to {most - 1}.",
            at=ranks[0],
            also=((because[0], f"{most} nodes"),),
            remedy=f"Use a node rank from 0 to {most - 1}, each once.",
        )
    return passed(launch.id)


def _each_once(job: Job, group: Sequence[Launch]) -> Verdict:
    subject = f"{group[0].id} and {len(group) - 1} more"
    claims = [job.setting("node_rank", launch.scope)[0] for launch in group]
    open_end = undecided(subject, claims)
    if open_end is not None:
        return open_end
    seen: dict[int, Claim] = {}
    for claim in claims:
        rank = min(numbers(claim.value), default=-1)
        if rank in seen:
            return failed(
                subject,
                f"{quoted(claim)} stands in {where(seen[rank])} too: two nodes of one job claim rank {rank}.",
                at=claim,
                also=((seen[rank], f"rank {rank} already"),),
                remedy=f"Give each of the {len(group)} launch lines a node rank of its own, from 0 on.",
            )
        seen[rank] = claim
    return passed(subject)
