"""Rendezvous arguments of one launch line, and of launch lines for the nodes of one job, which must agree."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from preflight._util.hostnames import host_of, is_loopback
from preflight._util.sequences import grouped, join_some
from preflight.model.findings import Confidence, Severity
from preflight.model.job import Claim, Job, Known, Launch, Plain, Strength, Unresolved, Value, as_int, unparsed_number
from preflight.model.job.claim import distinct, job_value
from preflight.model.job.job import SUBMISSION
from preflight.model.job.value import items, numbers, texts
from preflight.plugins.authoring import Verdict, delete_word, failed, make_fix, passed, rule, undecided, unknown
from preflight.plugins.claim_text import argument_of, joined, placed, quoted, where
from preflight.plugins.questions import LaunchQuestion, Stated, launches_with, required, subjects
from preflight_rules.kubernetes.workloads import Workload, workloads
from preflight_rules.launches import (
    SPREADING_WRAPPERS,
    certainly_one,
    certainly_several,
    is_same_line_again,
    nodes_spanned,
    place_started,
    starting_file,
    waited_between,
)
from preflight_rules.settings.tables import in_range, pinned

_MAX_PORT = 65535
#: Placeholders for a port: `<port>`, `master_port`, `YOUR_PORT`, `xxxx`.
_PLACEHOLDER = re.compile(r"<.*>|\[.*\]|\{.*\}|\w+_port|port_\w+|[xX]{2,}", re.IGNORECASE)
#: `xxx.xxx.xxx.xxx:port`: a placeholder for a whole endpoint.
_PLACEHOLDER_HOST = re.compile(r"[xX*]{1,4}(?:\.[xX*]{1,4}){3}:|<[^<>]*>:|\bip:", re.IGNORECASE)
#: Expressions that keep a value that is already set.
_DEFAULT_LOOKUP = re.compile(r"environ\.get|getenv")
#: The first port that users other than root can bind (net.ipv4.ip_unprivileged_port_start, Linux's default).
_FIRST_UNPRIVILEGED = 1024


@rule("PRT001", "port-invalid", severity=Severity.ERROR, otherwise="no launch sets a port")
def port_invalid(job: Job) -> Iterator[Verdict]:
    """The rendezvous port is not a valid TCP port.

    What it checks: The master port, of the launcher, of MASTER_PORT or of the script, is a whole number from 1 to
    65535. A port below 1024, where only root can listen, is a warning; so is a placeholder.

    Why it matters: torchrun stops with "must be an integer between 0 and 65536"; ranks that read MASTER_PORT themselves
    stop one after another.

    Example: `--master_port=295000`, or `export MASTER_PORT=port`.

    Fix: Use a port from 1024 to 32767, below the range from which Linux assigns ports itself.

    Known limits: Port 0 means "any free port" in a launch on one node, and is wrong only on several nodes.
    """
    for subject, scope, launch in subjects(job):
        for claim in distinct(job.setting("master_port", scope)):
            yield _port_verdict(job, subject, launch, claim)
        for claim in distinct(job.about("env.MASTER_PORT", scope)):
            # A default for a variable that the launcher sets is never used under it.
            if claim.source == "python" and _DEFAULT_LOOKUP.search(claim.spelling) is None:
                yield _port_verdict(job, subject, launch, replace(claim, value=as_int(claim.value)))


def _port_verdict(job: Job, subject: str, launch: Launch | None, claim: Claim) -> Verdict:
    remedy = "Use a port from 1024 to 32767."
    text = unparsed_number(claim.value)
    if text is not None:
        is_blank = _PLACEHOLDER.fullmatch(text) is not None
        # Words of another script stand for a number in documents.
        if _PLACEHOLDER_HOST.search(claim.spelling) or not text.isascii():
            return unknown(subject, f"{quoted(claim)} is a placeholder", at=claim)
        return failed(
            subject,
            f"{quoted(claim)} gives {text!r}, but a port number is expected"
            + (": it looks like a placeholder." if is_blank else "."),
            at=claim,
            remedy=remedy,
            severity=Severity.WARNING if is_blank else None,
        )
    if undecided_verdict := undecided(subject, (claim,), launch):
        return undecided_verdict
    ports = numbers(claim.value)
    is_multi_node = launch is not None and certainly_several(nodes_spanned(job, launch)[0])
    if ports and all(port > _MAX_PORT or port < 0 or (port == 0 and is_multi_node) for port in ports):
        return failed(
            subject,
            f"{quoted(claim)} is not a valid rendezvous port: expected 1 to {_MAX_PORT}, found {joined(ports)}.",
            at=claim,
            remedy=remedy,
        )
    if ports and all(0 < port < _FIRST_UNPRIVILEGED for port in ports):
        return failed(
            subject,
            f"{quoted(claim)}: only root can listen on a port below {_FIRST_UNPRIVILEGED}.",
            at=claim,
            remedy=remedy,
            severity=Severity.WARNING,
        )
    return passed(subject)


@rule(
    "PRT002",
    "port-shared-by-concurrent-launches",
    severity=Severity.WARNING,
    confidence=Confidence.MEDIUM,
    otherwise="no two launches use different GPUs of one node",
)
def port_shared_by_concurrent_launches(job: Job) -> Iterator[Verdict]:
    """Two launches that run at the same time on one node use the same port.

    What it checks: Single-node launches in one file that run at the same time, because they start in the background or
    use different GPUs, have different master ports. Before torch 2.12, torchrun without a port uses 29500.

    Why it matters: The second stops with "Address already in use", or joins the first one's store.

    Example: `CUDA_VISIBLE_DEVICES=0,1 torchrun --master_port=29500 a.py &` and the same port for GPUs 2 and 3.

    Fix: Give each its own port, or `--standalone` on one node: torchrun then uses a free port.

    Known limits: Consecutive launches may share a port. Launches with disjoint GPUs look like commands for several
    terminals, so the finding is informational; otherwise only background launches are compared. Different files are not
    compared. Port 0 means "any free port" and is never shared.
    """
    launches_with_ports = [(launch, *_port_and_devices(job, launch)) for launch in job.launches]
    for index, (first, port, devices) in enumerate(launches_with_ports):
        for second, other_port, other_devices in launches_with_ports[:index]:
            if port is None or other_port is None or not _share_a_host(first, second, devices, other_devices):
                continue
            if first.concurrent and waited_between(job, second, first):
                yield passed(first.id)
                continue
            verdict = undecided(first.id, (port, other_port), first)
            if verdict is None and any(numbers(port.value)) and numbers(port.value) == numbers(other_port.value):
                verdict = failed(
                    first.id,
                    f"{quoted(port)} is also the port of the launch on line {second.span.line}, and the two use "
                    "different GPUs, so they probably run at the same time."
                    if not first.concurrent
                    else f"{quoted(port)} is also the port of the launch that {_start_text(second)} starts, which"
                    " runs at the same time.",
                    at=port if first.span != second.span else argument_of(port) or place_started(first),
                    also=((argument_of(other_port) or place_started(second), "same port"),)
                    if first.span == second.span
                    else ((other_port, "same port"),),
                    remedy="Give each launch its own port.",
                    severity=None if first.concurrent else Severity.INFO,
                )
            yield verdict or passed(first.id)


def _share_a_host(first: Launch, second: Launch, devices: frozenset[str], other_devices: frozenset[str]) -> bool:
    """Return whether two launches probably run at the same time on one host."""
    if f"not {first.condition}" == second.condition or f"not {second.condition}" == first.condition:
        return False
    if first.concurrent and second.concurrent:
        remote = SPREADING_WRAPPERS | {"ssh", "sbatch", SUBMISSION}
        is_local = not remote.intersection((*first.wrappers, *second.wrappers))
        # Ranks that are started one by one share the port of their rendezvous.
        is_local = is_local and first.launcher != "python" and second.launcher != "python"
        return is_local and starting_file(first) == starting_file(second) and not is_same_line_again(first, second)
    # A loop or several calls may run one line once at a time.
    is_separate = first.span.path == second.span.path and first.span != second.span
    return is_separate and bool(devices and other_devices) and not devices & other_devices


def _start_text(launch: Launch) -> str:
    place = place_started(launch)
    return f"{place.path}:{place.line}"


def _port_and_devices(job: Job, launch: Launch) -> tuple[Claim | None, frozenset[str]]:
    port = _port_or_default(job, launch)
    visible = texts(job_value(job.setting("env.CUDA_VISIBLE_DEVICES", launch.scope)))
    devices = frozenset(part.strip() for part in visible[0].split(",") if part.strip()) if len(visible) == 1 else None
    is_multi_node = certainly_several(nodes_spanned(job, launch)[0])
    return (port if not is_multi_node else None), devices or frozenset()


def _port_or_default(job: Job, launch: Launch) -> Claim | None:
    """Return the port of a launch's rendezvous: its own, or torchrun's default (pytorch/pytorch#175699)."""
    ports = job.setting("master_port", launch.scope)
    backends = job.setting("rendezvous_backend", launch.scope)
    if ports or not backends or backends[0].strength is not Strength.DEFAULT:
        return ports[0] if ports else None
    is_free = in_range(pinned(job, "torch"), "2.12", "") is True
    spelling = f"{launch.launcher} (without --master_port, before torch 2.12)"
    return None if is_free else replace(backends[0], quantity="master_port", value=Known(29500), spelling=spelling)


#: Linux's default port range for outgoing connections (net.ipv4.ip_local_port_range).
_EPHEMERAL = (32768, 60999)


@rule(
    "PRT003",
    "port-among-ephemeral-ones",
    severity=Severity.INFO,
    confidence=Confidence.MEDIUM,
    otherwise="no launch over several nodes names a port",
)
def port_among_ephemeral_ones(job: Job) -> Iterator[Verdict]:
    """A fixed rendezvous port is in the range that Linux uses for outgoing connections.

    What it checks: A fixed master port of a launch over several nodes is outside 32768 to 60999.

    Why it matters: Any connection that the node opens before the job starts may use that port. The job then stops with
    "Address already in use", occasionally and only on some nodes.

    Example: `--master_port=45678` with `--nnodes=4`.

    Fix: Use a port from 1024 to 32767.

    Known limits: A port derived from the job id is not judged. A site's own range is unknown.
    """
    for subject, scope, launch in subjects(job):
        is_multi_node = launch is not None and certainly_several(nodes_spanned(job, launch)[0])
        for claim in distinct(job.setting("master_port", scope)) if is_multi_node else ():
            verdict = undecided(subject, (claim,), launch)
            ports = numbers(claim.value)
            if verdict is None and ports and all(_EPHEMERAL[0] <= port <= _EPHEMERAL[1] for port in ports):
                verdict = failed(
                    subject,
                    f"{quoted(claim)} is in the range that Linux uses for outgoing connections ({_EPHEMERAL[0]} to "
                    f"{_EPHEMERAL[1]}), so it may already be in use.",
                    at=claim,
                    remedy="Use a port from 1024 to 32767.",
                )
            yield verdict or passed(subject)


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

    Why it matters: `--standalone` replaces the rendezvous with one on localhost with its own port, regardless of the
    given endpoint. Each node then waits for the others and gives up after the join timeout.

    Example: `torchrun --standalone --nnodes=2 --nproc_per_node=8 train.py`.

    Fix: Remove `--standalone` and pass `--rdzv_backend=c10d --rdzv_endpoint=HOST:PORT`, or `--nnodes=1`.

    Known limits: Only `--nnodes` of the same launch is compared, not the size of the allocation.
    """
    standalone, nodes = question.of
    if not certainly_several(job_value(nodes)) or not all(c.alternatives == (True,) for c in standalone):
        return None
    count = joined(numbers(job_value(nodes)))
    return failed(
        question.subject,
        f"{quoted(standalone[0])} makes every node use its own localhost, but {quoted(nodes[0])} needs {count} nodes "
        "in one rendezvous: each waits alone until it times out.",
        at=standalone[0],
        also=((nodes[0], f"{count} nodes"),),
        remedy="Replace --standalone with --rdzv_backend=c10d --rdzv_endpoint=HOST:PORT, or set --nnodes=1.",
        waits_at="rendezvous",
    )


#: Arguments that torchrun ignores if another argument gives the endpoint.
_IGNORED_BY_ENDPOINT = ("unused_master_addr", "unused_master_port")


@rule(
    "RDV007",
    "rendezvous-argument-ignored",
    severity=Severity.WARNING,
    fix="safe",
    otherwise="no torchrun launch has a rendezvous option",
)
def rendezvous_argument_ignored(job: Job) -> Iterator[Verdict]:
    """A rendezvous argument is given that torchrun does not use.

    What it checks: `--master_addr`, `--master_port` and `--node_rank` are not given together with a dynamic backend
    (`--rdzv_backend=c10d`), nor `--master_addr` together with `--rdzv_endpoint` and the static backend.

    Why it matters: The argument seems to set the rendezvous, but changing it has no effect. Without an endpoint, c10d
    falls back to localhost although a master address is given.

    Example: `torchrun --rdzv_backend=c10d --master_addr=$MASTER_ADDR --master_port=6000 ...`.

    Fix: With c10d, pass `--rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT`; with static, omit the backend.

    Known limits: An argument that agrees with the endpoint is harmless and not reported; on one node it is only advice.
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
        is_dynamic = bool(backend) and all("static" not in texts(c.value) for c in backend)
        verdicts = list(_ignored_argument_verdicts(job, launch, endpoint, backend[0] if is_dynamic else None))
        yield from verdicts
        if not verdicts:
            yield passed(launch.id)


def _flags(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    """Return the effective claims that are options of this launch line."""
    return tuple(
        c for c in job.setting(quantity, launch.scope) if c.scope.launch == launch.id and c.strength is Strength.FLAG
    )


def _ignored_argument_verdicts(
    job: Job, launch: Launch, endpoint: tuple[Claim, ...], dynamic: Claim | None
) -> Iterator[Verdict]:
    deciding = dynamic if dynamic is not None else (endpoint[0] if endpoint else None)
    if deciding is None:
        return
    for quantity in _IGNORED_BY_ENDPOINT:
        for claim in _flags(job, launch, quantity):
            if endpoint and _endpoint_agrees(claim, endpoint[0]):
                continue
            used_text = f"{quoted(endpoint[0])} is used" if endpoint else "the endpoint is then localhost"
            yield failed(
                launch.id,
                f"{quoted(claim)} has no effect with {quoted(deciding)}: {used_text}.",
                at=claim,
                also=((deciding, "decides"),),
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
                remedy="Remove it, or use the static backend if the order of nodes matters.",
                severity=Severity.INFO,
                fix=make_fix("drop the node rank, which has no effect", delete_word(claim), safe=True),
            )


def _endpoint_agrees(claim: Claim, endpoint: Claim) -> bool:
    """Return whether the endpoint already contains the unused argument, by value or, if unknown, by variable name."""
    addresses = texts(endpoint.value)
    if not addresses:
        name = claim.spelling.replace("=", " ").split()[-1].strip("\"'${}")
        return bool(name) and name in endpoint.spelling
    return all(str(value) in address for address in addresses for value in claim.alternatives) and bool(
        claim.alternatives
    )


# Launch lines for the nodes of one job, which must agree.


_SHARED_SETTINGS = {
    "rendezvous_endpoint": "the rendezvous endpoint",
    "rendezvous_id": "the rendezvous id",
    "rendezvous_backend": "the rendezvous backend",
    "master_addr": "the master address",
    "master_port": "the master port",
    "nodes": "the number of nodes",
}

#: Arguments that must be equal on all nodes of a job with Paddle's launcher, even if no node rank is given.
_SHARED_BY_PEERS = {**_SHARED_SETTINGS, "env.FLAGS_START_PORT": "the first port"}
#: Arguments that must be equal for processes that are one rank each.
_SHARED_BY_RANKS = {name: _SHARED_SETTINGS[name] for name in ("master_addr", "master_port")}


def node_launches(job: Job) -> tuple[Launch, ...]:
    """Return the launches that each start one node of a group: they have several nodes, a node rank and one program.

    A launch that srun or mpirun starts on all nodes is its own group; an srun for one node is not.
    """
    launches = []
    for launch in job.launches:
        nodes, _ = nodes_spanned(job, launch)
        ranks = [claim for claim in job.setting("node_rank", launch.scope) if claim.strength > Strength.DEFAULT]
        is_spread = SPREADING_WRAPPERS.intersection(launch.wrappers) and not job.setting(
            "single_node_step", launch.scope
        )
        # Each submission is a separate job.
        if ranks and certainly_several(nodes) and not is_spread and SUBMISSION not in launch.wrappers:
            launches.append(launch)
    return tuple(launches)


def node_groups(job: Job) -> Iterator[tuple[Launch, ...]]:
    """Yield the node launches of one program in groups; equal ranks in one file are separate runs."""
    by_program = grouped(((launch.launcher, launch.program), launch) for launch in node_launches(job))
    for launches in by_program.values():
        if len(launches) > 1:
            yield from _consecutive_jobs(job, launches)


def _consecutive_jobs(job: Job, launches: Sequence[Launch]) -> Iterator[tuple[Launch, ...]]:
    """Yield the launches of each consecutive run if every run has each of its ranks once; otherwise all launches."""
    runs: list[tuple[Launch, ...]] = []
    current: list[Launch] = []
    for launch in launches:
        current.append(launch)
        counts = {numbers(nodes_spanned(job, other)[0]) for other in current}
        nodes = next(iter(counts)) if len(counts) == 1 else ()
        if nodes == (len(current),) and _known_ranks(job, current) == set(range(nodes[0])):
            runs.append(tuple(current))
            current = []
    yield from [tuple(launches)] if current else runs


#: Rendezvous backends under which torchrun numbers the nodes itself (torch/distributed/elastic/rendezvous/registry.py).
_NUMBERING_BACKENDS = frozenset(("c10d", "etcd", "etcd-v2"))


def _uses_given_rank(job: Job, launch: Launch) -> bool:
    """Return whether the launcher uses the node rank that it is given, instead of numbering the nodes itself."""
    backend = texts(job_value(job.setting("rendezvous_backend", launch.scope)))
    return launch.launcher != "torchrun" or not backend or not set(backend) <= _NUMBERING_BACKENDS


#: The quantities of a rank and the number of ranks: of the process group, and of the program's own options.
_RANK_QUANTITIES = (("rank", "world_size"), ("given_rank", "given_world_size"))


class RankedProcess(NamedTuple):
    """A launch that is one rank, with the claims about the rank and the number of ranks."""

    launch: Launch
    rank: tuple[Claim, ...]
    size: tuple[Claim, ...]


def _run_at_once(launches: Sequence[Launch]) -> bool:
    """Return whether the launches run at the same time: in the background, or from separate scripts."""
    launches = sorted(launches, key=lambda launch: (launch.span.path, launch.span.line))
    return all(launch.concurrent for launch in launches[:-1]) or (
        len({starting_file(launch) for launch in launches}) == len(launches)
    )


def processes_of_ranks(job: Job) -> Iterator[tuple[RankedProcess, ...]]:
    """Yield groups of simultaneous starts of one program, each of which starts one rank."""
    starts: dict[tuple[str, str], list[RankedProcess]] = {}
    for launch in job.launches:
        if launch.launcher != "python" or job.setting("ps_role", launch.scope):
            continue
        for rank, size in _RANK_QUANTITIES:
            ranks = tuple(claim for claim in job.setting(rank, launch.scope) if claim.strength > Strength.DEFAULT)
            sizes = job.requirement_claims(size, launch.scope) or job.setting(size, launch.scope)
            if ranks and sizes:
                starts.setdefault((launch.program, rank), []).append(RankedProcess(launch, ranks, sizes))
                break
    for processes in starts.values():
        if len(processes) > 1 and _run_at_once([process.launch for process in processes]):
            yield from _process_groups(job, processes)


def _process_groups(job: Job, processes: Sequence[RankedProcess]) -> Iterator[tuple[RankedProcess, ...]]:
    """Yield the processes of each group. Each group has its own address or port, and each rank once."""
    by_address: dict[tuple[Value, ...], list[RankedProcess]] = {}
    for process in processes:
        address = tuple(job.value(name, process.launch.scope) for name in ("master_addr", "master_port"))
        by_address.setdefault(address, []).append(process)
    ranks = [[job_value(process.rank) for process in group] for group in by_address.values()]
    if len(ranks) > 1 and len(ranks[0]) > 1 and all(len(set(group_ranks)) == len(ranks[0]) for group_ranks in ranks):
        yield from map(tuple, by_address.values())
    else:
        yield tuple(processes)


def paddle_peers(job: Job) -> Iterator[tuple[Launch, ...]]:
    """Yield the starts of one program for one Paddle job that give no rank: the lines for its nodes, or its trainers.

    Nodes get their rank from the list of nodes or from the master.
    """
    starts: dict[tuple[str, ...], list[Launch]] = {}
    for launch in job.launches:
        if launch.launcher == "paddle" and certainly_several(nodes_spanned(job, launch)[0]):
            has_rank = any(claim.strength > Strength.DEFAULT for claim in job.setting("node_rank", launch.scope))
            cluster = job.setting("hosts", launch.scope) or job.setting("master_addr", launch.scope)
            if cluster and not has_rank:
                # Lists of the same nodes belong to one job, whatever their order.
                names = sorted(items(cluster[0].value)) or [str(cluster[0].value)]
                starts.setdefault((launch.program, *names), []).append(launch)
        elif launch.launcher == "python" and texts(job_value(job.setting("ps_role", launch.scope))) == ("TRAINER",):
            starts.setdefault((launch.program,), []).append(launch)
    for launches in starts.values():
        if len(launches) > 1 and _run_at_once(launches):
            yield tuple(launches)


def _deciding_claims(job: Job, launch: Launch, quantity: str) -> tuple[Claim, ...]:
    return job.requirement_claims(quantity, launch.scope) or job.setting(quantity, launch.scope)


@rule(
    "RDV004",
    "rendezvous-differs-between-launches",
    severity=Severity.ERROR,
    otherwise="no two launch lines start nodes of the same job",
)
def rendezvous_differs_between_launches(job: Job) -> Iterator[Verdict]:
    """The launch lines for the nodes of one job have different rendezvous settings.

    What it checks: Launch lines of one program with different node ranks have the same master address and port,
    rendezvous endpoint, id and backend, and number of nodes. Single-rank processes that run at the same time have the
    same master address and port. Lines of Paddle's launcher for one master, or for the same nodes, also agree without
    node ranks, including the order of the nodes, and so do the roles of one Kubernetes object.

    Why it matters: A node with a different address, port or id waits alone until its rendezvous times out, and so do
    all the others.

    Example: `node0.sh` with `--master_port=29500` and `node1.sh` with `--master_port=29501`.

    Fix: Put the shared settings into one file that both scripts source, and pass only the node rank.

    Known limits: Sibling files that were not named together on the command line form a probable job, so the finding is
    a warning there. Lines with the same node rank are treated as two separate runs.
    """
    rank_groups = [tuple(process.launch for process in processes) for processes in processes_of_ranks(job)]
    for group in (*node_groups(job), *rank_groups):
        if len(_known_ranks(job, group)) < 2:
            continue
        for quantity, meaning in (_SHARED_SETTINGS if group not in rank_groups else _SHARED_BY_RANKS).items():
            verdict = _shared_setting_verdict(job, group, quantity, meaning)
            if verdict is not None:
                yield verdict
    for group in _roles_of_objects(job):
        for quantity, meaning in _SHARED_SETTINGS.items():
            claims_of_launches = [_deciding_claims(job, launch, quantity) for launch in group]
            # A value that the operator fills in is the same for all roles.
            are_known = all(
                claims and not any(isinstance(c.value, Unresolved) for c in claims) for claims in claims_of_launches
            )
            verdict = _shared_setting_verdict(job, group, quantity, meaning) if are_known else None
            if verdict is not None:
                yield verdict
    for group in paddle_peers(job):
        if group[0].launcher != "paddle":
            continue
        order = _host_order_verdict(job, group)
        if order is not None:
            yield order
            continue
        for quantity, meaning in _SHARED_BY_PEERS.items():
            verdict = _shared_setting_verdict(job, group, quantity, meaning)
            if verdict is not None:
                yield verdict


def _roles_of_objects(job: Job) -> Iterator[tuple[Launch, ...]]:
    """Yield the launch lines of the training roles of each Kubernetes object that has several."""
    by_id = {launch.id: launch for launch in job.launches}
    for workload in workloads(job):
        scopes = [scope.launch for role, scope in workload.launches() if role.trains]
        launches = tuple(dict.fromkeys(by_id[launch_id] for launch_id in scopes if launch_id in by_id))
        if len(launches) > 1 and len({launch.launcher for launch in launches}) == 1:
            yield launches


def _host_order_verdict(job: Job, group: Sequence[Launch]) -> Verdict | None:
    """Return the verdict on lists of the same nodes in different orders; None if no list differs in order.

    A node's rank is its position in its own list.
    """
    lists = [claims[0] for launch in group if (claims := job.setting("hosts", launch.scope))]
    first = lists[0] if lists else None
    odd = next((c for c in lists if first is not None and items(c.value) != items(first.value)), None)
    if first is None or odd is None or sorted(items(odd.value)) != sorted(items(first.value)):
        return None
    return failed(
        join_some([launch.id for launch in group], 1),
        f"{quoted(odd)} lists the nodes of {placed(first)} in a different order, but each node derives its ranks "
        "from its position in its own list.",
        at=odd,
        also=((first, "the other order"),),
        remedy="Write the same list on every node.",
        waits_at="rendezvous",
    )


def _known_ranks(job: Job, group: Iterable[Launch]) -> set[int]:
    claims_of_launches = [_rank_claims(job, launch) for launch in group]
    return {rank for claims in claims_of_launches for rank in numbers(job_value(claims))}


def _rank_claims(job: Job, launch: Launch) -> tuple[Claim, ...]:
    """Return the claims about the rank of a node, or of a launch that is a single rank."""
    names = ("node_rank", *(name for name, _ in _RANK_QUANTITIES))
    return next((claims for name in names if (claims := job.setting(name, launch.scope))), ())


def _is_rank_0_itself(job: Job, launch: Launch, claims: Iterable[Claim]) -> bool:
    """Return whether node 0 uses a loopback address, which works: its store listens on all interfaces."""
    hosts = [host_of(text) for text in texts(job_value(claims))]
    ranks = numbers(job_value(_rank_claims(job, launch)))
    return ranks == (0,) and bool(hosts) and all(is_loopback(host) for host in hosts)


def _shared_setting_verdict(job: Job, group: Sequence[Launch], quantity: str, meaning: str) -> Verdict | None:
    settings = [(launch, _deciding_claims(job, launch, quantity)) for launch in group]
    settings = [
        (launch, claims) for launch, claims in settings if claims and not _is_rank_0_itself(job, launch, claims)
    ]
    if len(settings) < 2:
        return None
    subject = join_some([launch.id for launch in group], 1)
    difference = first_difference(subject, settings, meaning)
    if difference is None or isinstance(difference, Verdict):
        return difference or passed(subject)
    odd_launch, odd_claims, common_launch, common_claims = difference
    return failed(
        subject,
        f"{quoted(odd_claims[0])} here and {quoted(common_claims[0])} in {where(common_claims[0])} give different "
        f"values for {meaning} of one job: these nodes will not find each other.",
        at=odd_claims[0],
        also=((argument_of(common_claims[0]) or common_claims[0], f"the node launched by {common_launch.id}"),),
        remedy=f"Give {meaning} the same value in {starting_file(odd_launch)} and {starting_file(common_launch)}."
        if starting_file(odd_launch) != starting_file(common_launch)
        else f"Give {meaning} the same value on every line that starts a node.",
        waits_at="rendezvous",
    )


def first_difference(
    subject: str, settings: Sequence[tuple[Launch, tuple[Claim, ...]]], meaning: str
) -> tuple[Launch, tuple[Claim, ...], Launch, tuple[Claim, ...]] | Verdict | None:
    """Return a launch whose value differs from most, its claims, one of the other launches, and its claims.

    Of two launches that differ, the first is returned first. None if all agree; an unknown verdict if a value is
    unresolved.
    """
    values: list[set[Plain]] = []
    for _, claims in settings:
        if undecided_verdict := undecided(subject, (*settings[0][1], *claims), quantity=meaning):
            return undecided_verdict
        value = job_value(claims)
        values.append({*numbers(value)} or {*texts(value)})
    agreements = [sum(bool(values_of_launch & other) for other in values) for values_of_launch in values]
    pairs = [
        (agreements[first], first, second)
        for first, values_of_launch in enumerate(values)
        for second, other in enumerate(values)
        if values_of_launch and other and not values_of_launch & other and agreements[first] <= agreements[second]
    ]
    if not pairs:
        return None
    _, odd_index, common_index = min(pairs)
    return *settings[odd_index], *settings[common_index]


@rule("RDV005", "node-rank-twice-or-missing", severity=Severity.ERROR, otherwise="no launch line sets a node rank")
def node_rank_twice_or_missing(job: Job) -> Iterator[Verdict]:
    """The node ranks of a job's launch lines are not 0 to n-1, each once.

    What it checks: Node ranks are below the number of nodes; and no rank occurs twice in launch lines in different
    files or that run at the same time. Of the lines of Paddle's launcher for one master, either all have a rank or
    none. A loop over machines with ssh starts as many nodes as each node waits for.

    Why it matters: A rank that occurs twice collides at the store; if one is missing, all wait until the rendezvous
    times out; a rank out of range is rejected immediately.

    Example: `--nnodes=2 --node_rank=1` in both node0.sh and node1.sh, or `--nnodes=2 --node_rank=2`.

    Fix: Count node ranks from 0, one for each node.

    Known limits: A rank whose launch line is elsewhere (fewer lines than nodes) is not reported. Equal ranks in one
    file are treated as two runs one after the other, unless the starts run in the background, or are as many services
    of a compose file as there are nodes.
    """
    launches = [launch for launch in node_launches(job) if _uses_given_rank(job, launch)]
    for launch in launches:
        yield _rank_range_verdict(job, launch)
    for group in node_groups(job):
        if not all(_uses_given_rank(job, launch) for launch in group):
            continue
        are_concurrent = all(launch.concurrent for launch in group)
        if (
            are_concurrent
            or len({starting_file(launch) for launch in group}) == len(group)
            or _are_compose_services(job, group)
        ):
            yield _ranks_verdict(job, group)
        verdict = _loop_verdict(job, group)
        if verdict is not None:
            yield verdict
    for launch in launches:
        verdict = _unranked_verdict(job, launch)
        if verdict is not None:
            yield verdict
    for workload in workloads(job):
        verdict = _pod_ranks_verdict(job, workload)
        if verdict is not None:
            yield verdict


def _pod_ranks_verdict(job: Job, workload: Workload) -> Verdict | None:
    """Return the verdict on the node ranks of an object's roles; None if they are unknown or there is only one role."""
    ranks_by_role: list[tuple[str, Claim, tuple[int, ...]]] = []
    for role, scope in workload.launches():
        claims = job.about("ranks_of_pods", scope) or job.setting("node_rank", scope)
        pods = numbers(role.count.value)
        pod_ranks = [int(str(item)) for item in items(claims[0].value)] if claims else []
        pod_ranks = pod_ranks or list(numbers(job_value(claims)))
        if not pod_ranks or len(pods) != 1 or len(pod_ranks) != pods[0]:
            return None
        ranks_by_role.append((role.name or workload.kind, claims[0], tuple(pod_ranks)))
    claim_by_rank: dict[int, tuple[str, Claim]] = {}
    for name, claim, ranks in ranks_by_role if len(ranks_by_role) > 1 else ():
        for rank in ranks:
            if rank in claim_by_rank:
                other, first = claim_by_rank[rank]
                return failed(
                    workload.id,
                    f"`{claim.spelling}` gives the pods of {name} node ranks {', '.join(map(str, ranks))}, but a pod "
                    f"of {other} also has {rank}.",
                    at=claim,
                    also=((first, f"rank {rank} of {other}"),),
                    remedy=f"Count the ranks over all roles: add the number of pods of {other} to the index of the pod"
                    f" in {name}.",
                    waits_at="rendezvous",
                )
            claim_by_rank[rank] = (name, claim)
    return passed(workload.id) if len(ranks_by_role) > 1 else None


def _loop_verdict(job: Job, group: Sequence[Launch]) -> Verdict | None:
    """Return the verdict on a loop over machines that starts fewer nodes than expected; None for other groups."""
    line, counts = group[0].span, {numbers(nodes_spanned(job, launch)[0]) for launch in group}
    in_loop = all("ssh" in launch.wrappers and launch.span == line for launch in group)
    if not in_loop or len(counts) != 1 or _known_ranks(job, group) != set(range(len(group))):
        return None
    (expected,) = counts
    _, node_claims = nodes_spanned(job, group[0])
    if not expected or min(expected) <= len(group):
        return None
    return failed(
        join_some([launch.id for launch in group], 1),
        f"{quoted(node_claims[0])} waits for {joined(expected)} nodes, but the loop starts {len(group)}, so the others"
        " must be started elsewhere.",
        at=node_claims[0],
        also=((group[0], "started by the loop"),),
        remedy=f"Add the missing machines to the loop, or expect {len(group)} nodes.",
        severity=Severity.WARNING,
        waits_at="rendezvous",
    )


def _unranked_verdict(job: Job, launch: Launch) -> Verdict | None:
    """Return the verdict on a line with a node rank if another line for the same Paddle master has none; otherwise
    None.
    """
    master = texts(job_value(job.setting("rendezvous_endpoint", launch.scope)))
    if launch.launcher != "paddle" or not master:
        return None
    for other in job.launches:
        is_same_program = (other.launcher, other.program) == (launch.launcher, launch.program) and other is not launch
        if not is_same_program or texts(job_value(job.setting("rendezvous_endpoint", other.scope))) != master:
            continue
        if not job.setting("node_rank", other.scope) and _run_at_once((other, launch)):
            rank = job.setting("node_rank", launch.scope)[0]
            return failed(
                f"{launch.id} and {other.id}",
                f"{quoted(rank)} gives one node a rank, but {other.span.path}:{other.span.line} starts another "
                "without one: the master requires ranks for all nodes or for none.",
                at=rank,
                remedy="Give every node a rank, or give none.",
            )
    return None


def _are_compose_services(job: Job, group: Sequence[Launch]) -> bool:
    """Return whether the launches are services of one compose file, which all run at the same time."""
    kinds = {file.path: file.kind for file in job.files}
    if any(kinds.get(launch.span.path) != "compose" for launch in group):
        return False
    return all(set(numbers(nodes_spanned(job, launch)[0])) == {len(group)} for launch in group)


def _rank_range_verdict(job: Job, launch: Launch) -> Verdict:
    ranks = job.setting("node_rank", launch.scope)
    nodes, node_claims = nodes_spanned(job, launch)
    if undecided_verdict := undecided(launch.id, ranks, launch):
        return undecided_verdict
    rank_numbers, node_count = numbers(job_value(ranks)), max(numbers(nodes))
    if rank_numbers and all(rank >= node_count or rank < 0 for rank in rank_numbers):
        return failed(
            launch.id,
            f"{quoted(ranks[0])} is not a rank of {placed(node_claims[0])}: node ranks are 0 to {node_count - 1}.",
            at=ranks[0],
            also=((node_claims[0], f"{node_count} nodes"),),
            remedy=f"Use a node rank from 0 to {node_count - 1}, each once.",
        )
    return passed(launch.id)


def _ranks_verdict(job: Job, group: Sequence[Launch]) -> Verdict:
    subject = join_some([launch.id for launch in group], 1)
    claims = [job.setting("node_rank", launch.scope)[0] for launch in group]
    if undecided_verdict := undecided(subject, claims):
        return undecided_verdict
    claim_by_rank: dict[int, Claim] = {}
    for claim in claims:
        rank = min(numbers(claim.value), default=-1)
        if rank in claim_by_rank:
            return failed(
                subject,
                f"{quoted(claim)} is also in {where(claim_by_rank[rank])}: two nodes of one job claim rank {rank}."
                if where(claim) != where(claim_by_rank[rank])
                else f"{quoted(claim)} gives two nodes of one job rank {rank}.",
                at=claim,
                also=((claim_by_rank[rank].origin or claim_by_rank[rank], f"rank {rank} already"),),
                remedy=f"Give each of the {len(group)} launch lines its own node rank, starting at 0.",
            )
        claim_by_rank[rank] = claim
    return passed(subject)


@rule(
    "RDV031",
    "nodes-started-one-after-another",
    severity=Severity.ERROR,
    otherwise="no script starts several nodes of one job on other machines",
)
def nodes_started_one_after_another(job: Job) -> Iterator[Verdict]:
    """A script starts the nodes of one job one after another, so that the first waits for the second forever.

    What it checks: If a script uses ssh to start nodes of one job on several machines, all but the last run in the
    background.

    Why it matters: The launcher on the first node waits for all nodes, but the script starts the second node only after
    the first launcher has ended.

    Example: `for r in 0 1; do ssh node$r torchrun --nnodes=2 --node_rank=$r ...; done`.

    Fix: End each of these lines with `&`, and the script with `wait`.

    Known limits: Lines without ssh may be intended for different terminals, and are not judged, and neither are lines
    in branches.
    """
    for group in node_groups(job):
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
        nodes, node_claims = nodes_spanned(job, first)
        yield failed(
            subject,
            f"`{first.launcher}` waits here for {joined(numbers(nodes))} nodes, but the script starts the next node "
            "only after this command has ended.",
            at=first,
            also=((node_claims[0], "waits for all nodes"),),
            remedy="End each of these lines with `&`, and the script with `wait`.",
            waits_at="rendezvous",
        )
