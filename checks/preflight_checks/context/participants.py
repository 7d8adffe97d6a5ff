"""Checks that the roles, numbers and addresses in the nodes' own environments describe one job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from preflight._util.hostnames import split_endpoint
from preflight.model.findings import Evidence, Severity
from preflight.model.job import Job, is_whole_number
from preflight.model.recording import Facts, Fleet
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.comparison import split
from preflight_checks.context.environment import bare, plan_logins, set_by_job, unseen_bare
from preflight_checks.plans import combined
from preflight_checks.requirements import fold, is_ps, nodes_share_machine

_COST = "reads the environment of one process, milliseconds"
_SERVERS, _TRAINERS = "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"


def _applies(job: Job, fleet: Fleet, variable: str) -> bool:
    """Whether `variable` matters to this job and can come from the nodes' own environment."""
    several = len(fleet.nodes) > 1 and bool(job.launches) and not nodes_share_machine(fleet)
    # A variable that nothing in the job reads may stay in an image.
    read = is_ps(job) if variable == "TRAINING_ROLE" else not job.about("backend") and not job.about("uses_ddp")
    return several and read and variable not in set_by_job(job)


@dataclass(frozen=True, slots=True)
class _Fault:
    """A fault of one node, or between two; `name` is the variable to inspect."""

    nodes: tuple[str, ...]
    message: str
    name: str
    expected: str
    remedy: str


@check(
    "ENV022",
    "roles-of-nodes-do-not-fit",
    plan=combined(plan_logins, when=lambda job, fleet: _applies(job, fleet, "TRAINING_ROLE")),
    cost=_COST,
    severity=Severity.ERROR,
)
def roles_of_nodes_do_not_fit(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Where nodes learn their role from their own environment, the roles make up one parameter-server job.

    What it checks: on each node that sets TRAINING_ROLE by itself, that a server's own POD_IP:PADDLE_PORT is in the
    list of servers, that a trainer's number is below the number of trainers, is unique, and is the index of its own
    endpoint; and, where every node has a role, that every server of the list has a node.

    Why it matters: a server that is not in the list is never used. If two trainers share a number, part of the data is
    not trained on, and the servers wait for a trainer that does not exist.

    Example: PADDLE_TRAINER_ID=1 on two nodes that were made from one image.

    Fix: set role, number and address for each node where it is started.

    Known limits: values that the job's files set are covered by lint (PPS), lists that differ between nodes by ENV020.
    One process per node is assumed if its own environment sets a role.
    """
    if not _applies(job, fleet, "TRAINING_ROLE"):
        yield not_applicable("roles", "the job has one node, no parameter servers, or sets the roles itself")
        return
    blind = tuple(unseen_bare(facts, "roles"))
    yield from blind
    observed = {node: seen.variables for node, seen in bare(facts).items()}
    roles = {node: held["TRAINING_ROLE"].upper() for node, held in observed.items() if "TRAINING_ROLE" in held}
    if not roles:
        if not blind and not observed:
            yield unknown("roles", "the environment is not known on any node")
        elif not blind:
            yield not_applicable("roles", "no node's own environment sets TRAINING_ROLE")
        return
    faults = [*_servers(roles, observed), *_trainers(roles, observed), *_servers_without_node(roles, observed, fleet)]
    for fault in faults:
        yield failed(
            f"{fault.name} on {fold(fault.nodes)}",
            fault.message,
            at=Evidence(
                "environment",
                f"{fault.name}={observed.get(fault.nodes[0], {}).get(fault.name, 'not set')}",
                fault.expected,
                f"printenv {fault.name}",
                fault.nodes[0],
            ),
            nodes=fault.nodes,
            remedy=fault.remedy,
        )
    if not faults:
        yield passed(f"roles on {len(roles)} nodes")


def _listed_values(held: Mapping[str, str], name: str) -> list[str]:
    return [item.strip() for item in held.get(name, "").split(",") if item.strip()]


def _servers(roles: Mapping[str, str], observed: Mapping[str, Mapping[str, str]]) -> Iterator[_Fault]:
    for node, role in roles.items():
        held = observed[node]
        listed = _listed_values(held, _SERVERS)
        if role not in ("PSERVER", "TRAINER"):
            yield _Fault(
                (node,),
                f"TRAINING_ROLE is {held['TRAINING_ROLE']} on {node}, but Paddle accepts only TRAINER and PSERVER",
                "TRAINING_ROLE",
                "TRAINER or PSERVER",
                f"Set TRAINING_ROLE to TRAINER or PSERVER on {node}.",
            )
        elif not listed and _SERVERS not in held:
            yield _Fault(
                (node,),
                f"{node} is a {role.lower()} without {_SERVERS}, so it cannot find the servers",
                _SERVERS,
                "the list of servers",
                f"Set {_SERVERS} on {node} as on the other nodes.",
            )
        elif role == "PSERVER" and "POD_IP" in held and "PADDLE_PORT" in held:
            own = f"{held['POD_IP']}:{held['PADDLE_PORT']}"
            if own not in listed:
                yield _Fault(
                    (node,),
                    f"{node} serves at {own} (POD_IP, PADDLE_PORT), which {_SERVERS} does not list ({fold(listed, 4)})",
                    "PADDLE_PORT",
                    fold(listed, 4),
                    f"Give {node} the address and port that the list has for it, or put {own} into every list.",
                )


def _trainers(roles: Mapping[str, str], observed: Mapping[str, Mapping[str, str]]) -> Iterator[_Fault]:
    used: dict[str, list[str]] = {}
    for node, role in roles.items():
        held = observed[node]
        number, count = held.get("PADDLE_TRAINER_ID", ""), held.get("PADDLE_TRAINERS_NUM", "")
        if role != "TRAINER" or not number:
            continue
        used.setdefault(number, []).append(node)
        if not is_whole_number(number) or (is_whole_number(count) and int(number) >= int(count)):
            below = f"below {count}" if is_whole_number(count) else "a number of at least 0"
            yield _Fault(
                (node,),
                f"PADDLE_TRAINER_ID is {number} on {node}, and must be {below} (PADDLE_TRAINERS_NUM)",
                "PADDLE_TRAINER_ID",
                below,
                "Number the trainers consecutively from 0.",
            )
            continue
        listed, own = _listed_values(held, _TRAINERS), held.get("PADDLE_CURRENT_ENDPOINT", "")
        if own and listed and (int(number) >= len(listed) or listed[int(number)] != own):
            yield _Fault(
                (node,),
                f"{node} is trainer {number} at {own}, but entry {number} of {_TRAINERS} is "
                f"{listed[int(number)] if int(number) < len(listed) else 'none'}",
                "PADDLE_CURRENT_ENDPOINT",
                listed[int(number)] if int(number) < len(listed) else "an entry of the list",
                f"Give {node} the number and endpoint of one entry of the list.",
            )
    for number, nodes in used.items():
        if len(nodes) > 1:
            yield _Fault(
                tuple(nodes),
                f"{fold(nodes)} all have PADDLE_TRAINER_ID={number}: servers see one trainer twice and miss another",
                "PADDLE_TRAINER_ID",
                "a unique number",
                "Number the trainers consecutively from 0.",
            )


def _servers_without_node(
    roles: Mapping[str, str], observed: Mapping[str, Mapping[str, str]], fleet: Fleet
) -> Iterator[_Fault]:
    """Servers of the list without a node; only if every node has a role and knows its own address."""
    servers = [node for node, role in roles.items() if role == "PSERVER"]
    lists = split({node: observed[node][_SERVERS] for node in roles if _SERVERS in observed[node]})
    whole = len(roles) == len(fleet.nodes) and all("POD_IP" in observed[node] for node in roles)
    if lists is None or lists.odd or not whole:
        return
    hosts = {node: observed[node]["POD_IP"] for node in roles}
    for endpoint in lists.common.split(","):
        parts = split_endpoint(endpoint.strip())
        first_nodes = [node for node, host in hosts.items() if parts is not None and host == parts[0]]
        if first_nodes and not any(node in servers for node in first_nodes):
            yield _Fault(
                tuple(first_nodes),
                f"{_SERVERS} names {endpoint.strip()}, but {fold(first_nodes)} at that address is not a server "
                f"(TRAINING_ROLE={observed[first_nodes[0]]['TRAINING_ROLE']}): all trainers wait for it",
                "TRAINING_ROLE",
                "PSERVER",
                f"Start a server on {fold(first_nodes)}, or remove {endpoint.strip()} from the list on every node.",
            )


@check(
    "ENV023",
    "tf-configs-do-not-fit",
    plan=combined(plan_logins, when=lambda job, fleet: _applies(job, fleet, "TF_CONFIG")),
    cost=_COST,
    severity=Severity.ERROR,
)
def tf_configs_do_not_fit(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The TF_CONFIG values in the nodes' own environments describe one cluster, with a distinct task each.

    What it checks: on nodes whose own environment sets TF_CONFIG, that it is JSON, that `cluster` is the same
    everywhere, and that `task` is part of it and unique.

    Why it matters: tasks with different cluster definitions wait for peers that do not exist, without a timeout.

    Example: worker 1 twice, after the image of one worker was cloned.

    Fix: write TF_CONFIG from one list of hosts.

    Known limits: values that the job's files set are covered by lint (TFP).
    """
    if not _applies(job, fleet, "TF_CONFIG"):
        yield not_applicable("TF_CONFIG", "the job has one node, does not use TensorFlow, or sets TF_CONFIG itself")
        return
    blind = tuple(unseen_bare(facts, "TF_CONFIG"))
    yield from blind
    held = {node: seen.variables["TF_CONFIG"] for node, seen in bare(facts).items() if "TF_CONFIG" in seen.variables}
    if not held:
        if not blind:
            yield not_applicable("TF_CONFIG", "no node's own environment sets it")
        return
    parsed = {node: _parsed(text) for node, text in held.items()}
    faults = [*_unreadable(parsed), *_clusters(parsed), *_tasks(parsed)]
    for fault in faults:
        yield failed(
            f"TF_CONFIG on {fold(fault.nodes)}",
            fault.message,
            at=Evidence("environment", held[fault.nodes[0]], fault.expected, "printenv TF_CONFIG", fault.nodes[0]),
            nodes=fault.nodes,
            remedy=fault.remedy,
        )
    if not faults:
        yield passed(f"TF_CONFIG on {len(held)} nodes")


@dataclass(frozen=True, slots=True)
class _Participants:
    """One parsed TF_CONFIG: the cluster as normalized text, the hosts by role, and the task; None if it is not JSON."""

    cluster: str
    sizes: Mapping[str, int]
    role: str
    index: int


def _parsed(text: str) -> _Participants | None:
    try:
        document = json.loads(text)
        cluster, task = document["cluster"], document.get("task") or {}
        sizes = {str(role): len(hosts) for role, hosts in cluster.items()}
        return _Participants(
            json.dumps(cluster, sort_keys=True), sizes, str(task.get("type", "")), int(task.get("index", 0))
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _unreadable(parsed: Mapping[str, _Participants | None]) -> Iterator[_Fault]:
    broken = tuple(node for node, parts_of_node in parsed.items() if parts_of_node is None)
    if broken:
        yield _Fault(
            broken,
            f"TF_CONFIG on {fold(broken)} is not JSON with a cluster",
            "TF_CONFIG",
            '{"cluster": ..., "task": ...}',
            "Write it with json.dumps, in single quotes where a shell sets it.",
        )


def _clusters(parsed: Mapping[str, _Participants | None]) -> Iterator[_Fault]:
    found = split({node: parts_of_node.cluster for node, parts_of_node in parsed.items() if parts_of_node is not None})
    if found is not None and found.odd:
        yield _Fault(
            tuple(found.odd),
            f"TF_CONFIG on {fold(found.odd)} and on {fold(found.agreeing, 4)} describe different clusters",
            "TF_CONFIG",
            found.common,
            f"Give {fold(found.odd)} the cluster of the others: {found.common}",
        )


def _tasks(parsed: Mapping[str, _Participants | None]) -> Iterator[_Fault]:
    used: dict[tuple[str, int], list[str]] = {}
    for node, parts_of_node in parsed.items():
        if parts_of_node is None or not parts_of_node.role:
            continue
        used.setdefault((parts_of_node.role, parts_of_node.index), []).append(node)
        # An evaluator is not part of the cluster.
        if parts_of_node.role != "evaluator" and parts_of_node.index >= parts_of_node.sizes.get(parts_of_node.role, 0):
            count = parts_of_node.sizes.get(parts_of_node.role, 0)
            yield _Fault(
                (node,),
                f"{node} is {parts_of_node.role} {parts_of_node.index}, but its cluster has only {count} of that role",
                "TF_CONFIG",
                f"an index below {count}" if count else f"one of {fold(parts_of_node.sizes)}",
                f"Correct the task of {node}.",
            )
    for (role, index), nodes in used.items():
        if len(nodes) > 1:
            yield _Fault(
                tuple(nodes),
                f"{fold(nodes)} are all {role} {index}: one of them cannot bind its port or is never contacted",
                "TF_CONFIG",
                "a unique task",
                "Give each node a unique type and index.",
            )
