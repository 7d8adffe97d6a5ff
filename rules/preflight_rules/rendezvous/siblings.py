"""Launch lines for the nodes of one job, which must agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from preflight._util.hostnames import host_of, is_loopback
from preflight._util.sequences import grouped, join_some
from preflight.model.findings import Severity
from preflight.model.job import Claim, Job, Launch, Plain, Strength, Unresolved, Value
from preflight.model.job.claim import job_value
from preflight.model.job.job import SUBMISSION
from preflight.model.job.value import items, numbers, texts
from preflight.plugins.authoring import Verdict, failed, passed, rule, undecided
from preflight.plugins.claim_text import argument_of, joined, placed, quoted, where
from preflight_rules.kubernetes.workloads import Workload, workloads
from preflight_rules.launches import SPREADING_WRAPPERS, certainly_several, nodes_spanned, starting_file

_SHARED = {
    "rendezvous_endpoint": "the rendezvous endpoint",
    "rendezvous_id": "the rendezvous id",
    "rendezvous_backend": "the rendezvous backend",
    "master_addr": "the master address",
    "master_port": "the master port",
    "nodes": "the number of nodes",
}

#: What the nodes of a job of Paddle's launcher must have in common, also where they give no rank.
_SHARED_BY_PEERS = {**_SHARED, "env.FLAGS_START_PORT": "the first port"}
#: What processes that are one rank each must have in common.
_SHARED_BY_RANKS = {name: _SHARED[name] for name in ("master_addr", "master_port")}


def node_launches(job: Job) -> tuple[Launch, ...]:
    """The launches that each start one node of a group: they name several nodes, a node rank and one program.

    A launch that srun or mpirun starts on all nodes is a group by itself; an srun for one node is not.
    """
    found = []
    for launch in job.launches:
        nodes, _ = nodes_spanned(job, launch)
        ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.DEFAULT]
        spread = SPREADING_WRAPPERS.intersection(launch.wrappers) and not job.setting("single_node_step", launch.scope)
        # Each submission is a job of its own.
        if ranks and certainly_several(nodes) and not spread and SUBMISSION not in launch.wrappers:
            found.append(launch)
    return tuple(found)


def groups(job: Job) -> Iterator[tuple[Launch, ...]]:
    """Node launches of one program with different node ranks; equal ranks in one file are separate runs."""
    by_program = grouped(((launch.launcher, launch.program), launch) for launch in node_launches(job))
    for found in by_program.values():
        if len(found) > 1:
            yield from _jobs_of(job, found)


def _jobs_of(job: Job, launches: Sequence[Launch]) -> Iterator[tuple[Launch, ...]]:
    """The launches by their number of nodes, if each of these has all its ranks once; otherwise all together."""
    by_nodes: dict[tuple[int, ...], list[Launch]] = {}
    for launch in launches:
        by_nodes.setdefault(numbers(nodes_spanned(job, launch)[0]), []).append(launch)
    complete = all(
        len(nodes) == 1 and nodes[0] == len(found) and _known_ranks(job, found) == set(range(nodes[0]))
        for nodes, found in by_nodes.items()
    )
    yield from map(tuple, by_nodes.values() if complete else [launches])


#: Rendezvous backends under which torchrun numbers the nodes itself (torch/distributed/elastic/rendezvous/registry.py).
_NUMBERING = frozenset(("c10d", "etcd", "etcd-v2"))


def _is_numbered(job: Job, launch: Launch) -> bool:
    """Whether the launcher takes the node rank that it is given."""
    backend = texts(job_value(job.setting("rendezvous_backend", launch.scope)))
    return launch.launcher != "torchrun" or not backend or not set(backend) <= _NUMBERING


#: A rank and the number of ranks: of the process group, and as the program's own options.
_RANKS = (("rank", "world_size"), ("given_rank", "given_world_size"))


class RankedProcess(NamedTuple):
    """A launch that is one rank, with the claims of its rank and of the number of ranks."""

    launch: Launch
    rank: tuple[Claim, ...]
    size: tuple[Claim, ...]


def _run_together(launches: Sequence[Launch]) -> bool:
    """Whether these starts run at the same time: in the background, or from separate scripts."""
    launches = sorted(launches, key=lambda launch: (launch.span.path, launch.span.line))
    return all(launch.concurrent for launch in launches[:-1]) or (
        len({starting_file(launch) for launch in launches}) == len(launches)
    )


def processes_of_ranks(job: Job) -> Iterator[tuple[RankedProcess, ...]]:
    """Starts of one program that each give one rank and run at the same time."""
    found: dict[tuple[str, str], list[RankedProcess]] = {}
    for launch in job.launches:
        if launch.launcher != "python" or job.setting("ps_role", launch.scope):
            continue
        for rank, size in _RANKS:
            ranks = tuple(claim for claim in job.setting(rank, launch.scope) if claim.strength > Strength.DEFAULT)
            sizes = job.requiring(size, launch.scope) or job.setting(size, launch.scope)
            if ranks and sizes:
                found.setdefault((launch.program, rank), []).append(RankedProcess(launch, ranks, sizes))
                break
    for processes in found.values():
        if len(processes) > 1 and _run_together([process.launch for process in processes]):
            yield from _groups_of(job, processes)


def _groups_of(job: Job, processes: Sequence[RankedProcess]) -> Iterator[tuple[RankedProcess, ...]]:
    """The processes of each group: of several groups, each has an address or a port of its own, and all ranks once."""
    by_address: dict[tuple[Value, ...], list[RankedProcess]] = {}
    for process in processes:
        address = tuple(job.value(name, process.launch.scope) for name in ("master_addr", "master_port"))
        by_address.setdefault(address, []).append(process)
    ranks = [[job_value(process.rank) for process in group] for group in by_address.values()]
    if len(ranks) > 1 and len(ranks[0]) > 1 and all(len(set(each)) == len(ranks[0]) for each in ranks):
        yield from map(tuple, by_address.values())
    else:
        yield tuple(processes)


def peers(job: Job) -> Iterator[tuple[Launch, ...]]:
    """Starts of one program for one Paddle job that give no rank: lines for its nodes, and its trainers.

    Nodes find their rank in the list of nodes or at the master.
    """
    found: dict[tuple[str, ...], list[Launch]] = {}
    for launch in job.launches:
        if launch.launcher == "paddle" and certainly_several(nodes_spanned(job, launch)[0]):
            ranked = any(claim.strength > Strength.DEFAULT for claim in job.setting("node_rank", launch.scope))
            cluster = job.setting("hosts", launch.scope) or job.setting("master_addr", launch.scope)
            if cluster and not ranked:
                # Lists of the same nodes are of one job, whatever their order.
                names = sorted(items(cluster[0].value)) or [str(cluster[0].value)]
                found.setdefault((launch.program, *names), []).append(launch)
        elif launch.launcher == "python" and texts(job_value(job.setting("ps_role", launch.scope))) == ("TRAINER",):
            found.setdefault((launch.program,), []).append(launch)
    for launches in found.values():
        if len(launches) > 1 and _run_together(launches):
            yield tuple(launches)


def _deciding(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    return job.requiring(quantity, launch.scope) or job.setting(quantity, launch.scope)


@rule(
    "RDV004",
    "rendezvous-differs-between-launches",
    severity=Severity.ERROR,
    otherwise="no two launch lines start nodes of one job",
)
def rendezvous_differs_between_launches(job: Job) -> Iterator[Verdict]:
    """The launch lines for the nodes of one job have different rendezvous settings.

    What it checks: Launch lines of one program that carry different node ranks agree about the master address and port,
    the rendezvous endpoint, id and backend, and the number of nodes. Processes of one rank each that run at the same
    time agree about the master address and port. Lines of Paddle's launcher for one master, or for the same nodes,
    agree without ranks as well, also about the order of the nodes; so do the roles of one object of Kubernetes.

    Why it matters: A node with a different address, port or id waits alone until its rendezvous times out, and so do
    all the others.

    Example: `node0.sh` with `--master_port=29500` and `node1.sh` with `--master_port=29501`.

    Fix: Put what the nodes share into one file that both scripts source, and pass only the node rank.

    Known limits: Sibling files that were not named together on the command line form a probable job, so the finding is
    a warning there. Lines with the same node rank are treated as two separate runs.
    """
    single = [tuple(process.launch for process in processes) for processes in processes_of_ranks(job)]
    for group in (*groups(job), *single):
        if len(_known_ranks(job, group)) < 2:
            continue
        for quantity, meaning in (_SHARED if group not in single else _SHARED_BY_RANKS).items():
            verdict = _shared(job, group, quantity, meaning)
            if verdict is not None:
                yield verdict
    for group in _roles_of_objects(job):
        for quantity, meaning in _SHARED.items():
            stated = [_deciding(job, launch, quantity) for launch in group]
            # What the operator fills in is the same for all roles.
            known = all(claims and not any(isinstance(c.value, Unresolved) for c in claims) for claims in stated)
            verdict = _shared(job, group, quantity, meaning) if known else None
            if verdict is not None:
                yield verdict
    for group in peers(job):
        if group[0].launcher != "paddle":
            continue
        order = _order_of_hosts(job, group)
        if order is not None:
            yield order
            continue
        for quantity, meaning in _SHARED_BY_PEERS.items():
            verdict = _shared(job, group, quantity, meaning)
            if verdict is not None:
                yield verdict


def _roles_of_objects(job: Job) -> Iterator[tuple[Launch, ...]]:
    """The launch lines of the training roles of one object of Kubernetes, where it has several."""
    by_id = {launch.id: launch for launch in job.launches}
    for workload in workloads(job):
        scopes = [scope.launch for role, scope in workload.launches() if role.trains]
        found = tuple(dict.fromkeys(by_id[each] for each in scopes if each in by_id))
        if len(found) > 1 and len({launch.launcher for launch in found}) == 1:
            yield found


def _order_of_hosts(job: Job, group: Sequence[Launch]) -> Verdict | None:
    """Lists of the same nodes in another order: each node takes its rank from its place in its own list."""
    listed = [claims[0] for launch in group if (claims := job.setting("hosts", launch.scope))]
    first = listed[0] if listed else None
    odd = next((c for c in listed if first is not None and items(c.value) != items(first.value)), None)
    if first is None or odd is None or sorted(items(odd.value)) != sorted(items(first.value)):
        return None
    return failed(
        join_some([launch.id for launch in group], 1),
        f"{quoted(odd)} has the nodes of {placed(first)} in another order, and each node takes its ranks from its place"
        " in its own list.",
        at=odd,
        also=((first, "the other order"),),
        remedy="Write the same list on every node.",
        waits_at="rendezvous",
    )


def _known_ranks(job: Job, group: Iterable[Launch]) -> set[int]:
    found = [_rank_claims(job, launch) for launch in group]
    return {n for claims in found for n in numbers(job_value(claims))}


def _rank_claims(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """The claims about the rank of a node, or of a launch that is a single rank."""
    names = ("node_rank", *(name for name, _ in _RANKS))
    return next((claims for name in names if (claims := job.setting(name, launch.scope))), ())


def _is_rank_0_itself(job: Job, launch: Launch, claims: Iterable[Claim]) -> bool:
    """Whether node 0 uses a loopback address for itself, which is fine: its store listens on all interfaces."""
    hosts = [host_of(text) for text in texts(job_value(claims))]
    ranks = numbers(job_value(_rank_claims(job, launch)))
    return ranks == (0,) and bool(hosts) and all(is_loopback(host) for host in hosts)


def _shared(job: Job, group: Sequence[Launch], quantity: str, meaning: str) -> Verdict | None:
    stated = [(launch, _deciding(job, launch, quantity)) for launch in group]
    stated = [(launch, claims) for launch, claims in stated if claims and not _is_rank_0_itself(job, launch, claims)]
    if len(stated) < 2:
        return None
    subject = join_some([launch.id for launch in group], 1)
    different = first_difference(subject, stated, meaning)
    if different is None or isinstance(different, Verdict):
        return different or passed(subject)
    odd, odd_claims, common, common_claims = different
    return failed(
        subject,
        f"{quoted(odd_claims[0])} here and {quoted(common_claims[0])} in {where(common_claims[0])} give {meaning} of"
        " one job different values: the two will not find each other.",
        at=odd_claims[0],
        also=((argument_of(common_claims[0]) or common_claims[0], f"node launched by {common.id}"),),
        remedy=f"Give {meaning} the same value in {starting_file(odd)} and {starting_file(common)}."
        if starting_file(odd) != starting_file(common)
        else f"Give {meaning} the same value on every line that starts a node.",
        waits_at="rendezvous",
    )


def first_difference(
    subject: str, stated: Sequence[tuple[Launch, tuple[Claim, ...]]], meaning: str
) -> tuple[Launch, tuple[Claim, ...], Launch, tuple[Claim, ...]] | Verdict | None:
    """Return a launch whose value differs from that of most, its claims, one of those others, and its claims.

    Of two launches that differ the first is the odd one. None if all agree; an unknown verdict if a value is open.
    """
    values: list[set[Plain]] = []
    for _, claims in stated:
        if undecided_verdict := undecided(subject, (*stated[0][1], *claims), quantity=meaning):
            return undecided_verdict
        value = job_value(claims)
        values.append({*numbers(value)} or {*texts(value)})
    agreeing = [sum(bool(values_of_launch & other) for other in values) for values_of_launch in values]
    pairs = [
        (agreeing[first], first, second)
        for first, values_of_launch in enumerate(values)
        for second, other in enumerate(values)
        if values_of_launch and other and not values_of_launch & other and agreeing[first] <= agreeing[second]
    ]
    if not pairs:
        return None
    _, odd, common = min(pairs)
    return *stated[odd], *stated[common]


@rule("RDV005", "node-rank-twice-or-missing", severity=Severity.ERROR, otherwise="no launch line carries a node rank")
def node_rank_twice_or_missing(job: Job) -> Iterator[Verdict]:
    """The node ranks of a job's launch lines are not 0 to n-1, each once.

    What it checks: Node ranks are below the number of nodes; and where launch lines in different files carry them, or
    run at the same time, no rank occurs twice. Of lines of Paddle's launcher for one master, all have a rank or none. A
    loop that reaches machines by ssh starts as many nodes as each of them waits for.

    Why it matters: A rank that occurs twice collides at the store; with one missing all wait until the rendezvous times
    out; one out of range is rejected at once.

    Example: `--nnodes=2 --node_rank=1` in both node0.sh and node1.sh, or `--nnodes=2 --node_rank=2`.

    Fix: Count node ranks from 0, one for each node.

    Known limits: A rank whose launch line is elsewhere (fewer lines than nodes) is not reported. Equal ranks in one
    file are treated as two runs one after the other, unless the starts run in the background, or are as many services
    of a compose file as there are nodes.
    """
    launches = [launch for launch in node_launches(job) if _is_numbered(job, launch)]
    for launch in launches:
        yield _in_range(job, launch)
    for group in groups(job):
        if not all(_is_numbered(job, launch) for launch in group):
            continue
        at_once = all(launch.concurrent for launch in group)
        if at_once or len({starting_file(launch) for launch in group}) == len(group) or _services(job, group):
            yield _ranks_verdict(job, group)
        verdict = _missing_in_loop(job, group)
        if verdict is not None:
            yield verdict
    for launch in launches:
        verdict = _beside_unranked(job, launch)
        if verdict is not None:
            yield verdict
    for workload in workloads(job):
        verdict = _ranks_of_pods(job, workload)
        if verdict is not None:
            yield verdict


def _ranks_of_pods(job: Job, workload: Workload) -> Verdict | None:
    """The node ranks that the roles of an object give their pods; None if they are not known, or it has one role."""
    ranked: list[tuple[str, Claim, tuple[int, ...]]] = []
    for role, scope in workload.launches():
        claims = job.about("ranks_of_pods", scope) or job.setting("node_rank", scope)
        pods = numbers(role.count.value)
        found = [int(str(item)) for item in items(claims[0].value)] if claims else []
        found = found or list(numbers(job_value(claims)))
        if len(pods) != 1 or len(found) != pods[0]:
            return None
        ranked.append((role.name or workload.kind, claims[0], tuple(found)))
    seen: dict[int, tuple[str, Claim]] = {}
    for name, claim, ranks in ranked if len(ranked) > 1 else ():
        for rank in ranks:
            if rank in seen:
                other, first = seen[rank]
                return failed(
                    workload.id,
                    f"`{claim.spelling}` gives the pods of {name} node ranks {', '.join(map(str, ranks))}, but a pod of"
                    f" {other} has {rank} too.",
                    at=claim,
                    also=((first, f"rank {rank} of {other}"),),
                    remedy=f"Count the ranks over all roles: add the number of pods of {other} to the index of the pod"
                    f" in {name}.",
                    waits_at="rendezvous",
                )
            seen[rank] = (name, claim)
    return passed(workload.id) if len(ranked) > 1 else None


def _missing_in_loop(job: Job, group: Sequence[Launch]) -> Verdict | None:
    """A loop over machines that starts fewer nodes than each of them waits for."""
    line, counts = group[0].span, {numbers(nodes_spanned(job, launch)[0]) for launch in group}
    in_loop = all("ssh" in launch.wrappers and launch.span == line for launch in group)
    if not in_loop or len(counts) != 1 or _known_ranks(job, group) != set(range(len(group))):
        return None
    (expected,) = counts
    _, because = nodes_spanned(job, group[0])
    if not expected or min(expected) <= len(group):
        return None
    return failed(
        join_some([launch.id for launch in group], 1),
        f"{quoted(because[0])} waits for {joined(expected)} nodes, but the loop starts {len(group)}: the others have to"
        " come from elsewhere.",
        at=because[0],
        also=((group[0], "started by the loop"),),
        remedy=f"Add the missing machines to the loop, or expect {len(group)} nodes.",
        severity=Severity.WARNING,
        waits_at="rendezvous",
    )


def _beside_unranked(job: Job, launch: Launch) -> Verdict | None:
    """A rank on one line for a job of Paddle's launcher, while another line for the same master has none."""
    master = texts(job_value(job.setting("rendezvous_endpoint", launch.scope)))
    if launch.launcher != "paddle" or not master:
        return None
    for other in job.launches:
        same = (other.launcher, other.program) == (launch.launcher, launch.program) and other is not launch
        if not same or texts(job_value(job.setting("rendezvous_endpoint", other.scope))) != master:
            continue
        if not job.setting("node_rank", other.scope) and _run_together((other, launch)):
            rank = job.setting("node_rank", launch.scope)[0]
            return failed(
                f"{launch.id} and {other.id}",
                f"{quoted(rank)} numbers one node, and {other.span.path}:{other.span.line} starts another without a"
                " number: the master numbers all nodes or none.",
                at=rank,
                remedy="Give every node a number, or none.",
            )
    return None


def _services(job: Job, group: Sequence[Launch]) -> bool:
    """Whether the launches are services of one compose file, which all run at the same time."""
    kinds = {file.path: file.kind for file in job.files}
    if any(kinds.get(launch.span.path) != "compose" for launch in group):
        return False
    return all(set(numbers(nodes_spanned(job, launch)[0])) == {len(group)} for launch in group)


def _in_range(job: Job, launch: Launch) -> Verdict:
    ranks = job.setting("node_rank", launch.scope)
    nodes, because = nodes_spanned(job, launch)
    if undecided_verdict := undecided(launch.id, ranks, launch):
        return undecided_verdict
    found, most = numbers(job_value(ranks)), max(numbers(nodes))
    if found and all(rank >= most or rank < 0 for rank in found):
        return failed(
            launch.id,
            f"{quoted(ranks[0])} is not a rank of {placed(because[0])}: node ranks go from 0 to {most - 1}.",
            at=ranks[0],
            also=((because[0], f"{most} nodes"),),
            remedy=f"Use a node rank from 0 to {most - 1}, each once.",
        )
    return passed(launch.id)


def _ranks_verdict(job: Job, group: Sequence[Launch]) -> Verdict:
    subject = join_some([launch.id for launch in group], 1)
    claims = [job.setting("node_rank", launch.scope)[0] for launch in group]
    if undecided_verdict := undecided(subject, claims):
        return undecided_verdict
    seen: dict[int, Claim] = {}
    for claim in claims:
        rank = min(numbers(claim.value), default=-1)
        if rank in seen:
            return failed(
                subject,
                f"{quoted(claim)} is also in {where(seen[rank])}: two nodes of one job claim rank {rank}."
                if where(claim) != where(seen[rank])
                else f"{quoted(claim)} gives two nodes of one job rank {rank}.",
                at=claim,
                also=((seen[rank].origin or seen[rank], f"rank {rank} already"),),
                remedy=f"Give each of the {len(group)} launch lines its own node rank, starting at 0.",
            )
        seen[rank] = claim
    return passed(subject)


@rule(
    "RDV031",
    "nodes-started-one-after-another",
    severity=Severity.ERROR,
    otherwise="no script starts several nodes of one job on other machines",
)
def nodes_started_one_after_another(job: Job) -> Iterator[Verdict]:
    """A script starts the nodes of one job one after another, so that the first waits for the second forever.

    What it checks: Where a script reaches several machines by ssh and starts a node of one job on each, all but the
    last of them run in the background.

    Why it matters: The launcher on the first node ends when the job has ended, and until all nodes are there it waits.
    The script comes to the second node only after that.

    Example: `for r in 0 1; do ssh node$r torchrun --nnodes=2 --node_rank=$r ...; done`.

    Fix: End each of these lines with `&`, and the script with `wait`.

    Known limits: Lines without ssh may be meant for different terminals, and are not judged; nor are those in branches.
    """
    for group in groups(job):
        lines = [launch for launch in group if "ssh" in launch.wrappers and not launch.condition]
        scripts = {starting_file(launch) for launch in lines}
        if len(lines) < 2 or len(scripts) > 1:
            continue
        subject = join_some([launch.id for launch in lines], 1)
        if undecided_verdict := undecided(subject, [claim for launch in lines for claim in _rank_claims(job, launch)]):
            yield undecided_verdict
            continue
        if len(_known_ranks(job, lines)) < len(lines):
            continue
        first = next((launch for launch in lines[:-1] if not launch.concurrent), None)
        if first is None:
            yield passed(subject)
            continue
        nodes, because = nodes_spanned(job, first)
        yield failed(
            subject,
            f"`{first.launcher}` waits here for {joined(numbers(nodes))} nodes, but the script starts the next of them"
            " only when this line has ended.",
            at=first,
            also=((because[0], "waits for all of them"),),
            remedy="End each of these lines with `&`, and the script with `wait`.",
            waits_at="rendezvous",
        )
