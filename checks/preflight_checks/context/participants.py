"""Whether the roles, numbers and addresses that each node's own environment gives it make up one job."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping

from preflight.job import Job
from preflight.job.hostname import split_endpoint
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Evidence, Severity
from preflight.recording import Facts, Fleet
from preflight.request import Request
from preflight_checks.context.surroundings import bare, requests, set_by_job, unseen_bare
from preflight_checks.demands import fold, stand_ins
from preflight_checks.majority import split
from preflight_checks.probes.environment import environment
from preflight_checks.servers.server_layout import is_ps

_COST = "reads the environment of one process, milliseconds"
_SERVERS, _TRAINERS = "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"


def _applies(job: Job, fleet: Fleet, variable: str) -> bool:
    """Whether nodes may be told by themselves what `variable` says."""
    several = len(fleet.nodes) > 1 and bool(job.launches) and not stand_ins(fleet)
    # A variable that nothing in the job reads may stand in an image for ever.
    read = is_ps(job) if variable == "TRAINING_ROLE" else not job.about("backend") and not job.about("uses_ddp")
    return several and read and variable not in set_by_job(job)


def _plan_roles(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if _applies(job, fleet, "TRAINING_ROLE"):
        yield from requests(job, fleet, context=False)


def _plan_tf(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    if _applies(job, fleet, "TF_CONFIG"):
        yield from requests(job, fleet, context=False)


@dataclass(frozen=True, slots=True)
class _Fault:
    """What is wrong with one node, or between two; `name` is the variable to look at."""

    nodes: tuple[str, ...]
    message: str
    name: str
    expected: str
    remedy: str


@check(
    "ENV022",
    "roles-of-nodes-do-not-fit",
    plan=_plan_roles,
    probes=(environment,),
    cost=_COST,
    severity=Severity.ERROR,
    evidence=("PaddlePaddle/Paddle#4281", "PaddlePaddle/Paddle#3659", "PaddlePaddle/Paddle#9426"),
)
def roles_of_nodes_do_not_fit(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Where nodes learn their role from their own environment, the roles make up one parameter-server job.

    What it checks: on each node that sets TRAINING_ROLE by itself, that a server's own POD_IP:PADDLE_PORT is in the
    list of servers, that a trainer's number is one below the number of trainers, is nobody else's, and is the place of
    its own endpoint; and, where every node has a role, that every server of the list has a node.

    Why it matters: a server that is not in the list serves nobody; a number that two trainers have leaves one part of
    the data to nobody, and the servers wait for a trainer that does not exist.

    Example: PADDLE_TRAINER_ID=1 on two nodes that were made from one image.

    Fix: set role, number and address for each node where it is started.

    Known limits: what the job's own files set is the lint rules' (PPS); lists that differ between nodes are ENV020's.
    One process a node is assumed where a node's own environment gives a role.

    Evidence: PaddlePaddle/Paddle#4281, PaddlePaddle/Paddle#3659, PaddlePaddle/Paddle#9426.
    """
    if not _applies(job, fleet, "TRAINING_ROLE"):
        yield not_applicable("roles", "the job has one node, no parameter servers, or gives the roles itself")
        return
    blind = tuple(unseen_bare(facts, "roles"))
    yield from blind
    have = {node: seen.variables for node, seen in bare(facts).items()}
    roles = {node: held["TRAINING_ROLE"].upper() for node, held in have.items() if "TRAINING_ROLE" in held}
    if not roles:
        if not blind and not have:
            yield unknown("roles", "no node told its environment")
        elif not blind:
            yield not_applicable("roles", "no node's own environment sets TRAINING_ROLE")
        return
    faults = [*_servers(roles, have), *_trainers(roles, have), *_uncovered(roles, have, fleet)]
    for fault in faults:
        yield failed(
            f"{fault.name} on {fold(fault.nodes)}",
            fault.message,
            at=Evidence(
                "environment",
                f"{fault.name}={have.get(fault.nodes[0], {}).get(fault.name, 'not set')}",
                fault.expected,
                f"printenv {fault.name}",
                fault.nodes[0],
            ),
            nodes=fault.nodes,
            remedy=fault.remedy,
        )
    if not faults:
        yield passed(f"roles on {len(roles)} nodes")


def _listed(held: Mapping[str, str], name: str) -> list[str]:
    return [item.strip() for item in held.get(name, "").split(",") if item.strip()]


def _servers(roles: Mapping[str, str], have: Mapping[str, Mapping[str, str]]) -> Iterator[_Fault]:
    for node, role in roles.items():
        held = have[node]
        listed = _listed(held, _SERVERS)
        if role not in ("PSERVER", "TRAINER"):
            yield _Fault(
                (node,),
                f"TRAINING_ROLE is {held['TRAINING_ROLE']} on {node}, and Paddle knows TRAINER and PSERVER",
                "TRAINING_ROLE",
                "TRAINER or PSERVER",
                f"Set TRAINING_ROLE to TRAINER or PSERVER on {node}.",
            )
        elif not listed and _SERVERS not in held:
            yield _Fault(
                (node,),
                f"{node} is a {role.lower()} and has no {_SERVERS}: it cannot know the servers",
                _SERVERS,
                "the list of servers",
                f"Set {_SERVERS} on {node} as on the other nodes.",
            )
        elif role == "PSERVER" and "POD_IP" in held and "PADDLE_PORT" in held:
            own = f"{held['POD_IP']}:{held['PADDLE_PORT']}"
            if own not in listed:
                yield _Fault(
                    (node,),
                    f"{node} is to serve at {own} (POD_IP, PADDLE_PORT), not in {_SERVERS} ({fold(listed, 4)})",
                    "PADDLE_PORT",
                    fold(listed, 4),
                    f"Give {node} the address and port that the list has for it, or put {own} into every list.",
                )


def _trainers(roles: Mapping[str, str], have: Mapping[str, Mapping[str, str]]) -> Iterator[_Fault]:
    taken: dict[str, list[str]] = {}
    for node, role in roles.items():
        held = have[node]
        number, count = held.get("PADDLE_TRAINER_ID", ""), held.get("PADDLE_TRAINERS_NUM", "")
        if role != "TRAINER" or not number:
            continue
        taken.setdefault(number, []).append(node)
        if not number.isdigit() or (count.isdigit() and int(number) >= int(count)):
            below = f"below {count}" if count.isdigit() else "a number from 0 on"
            yield _Fault(
                (node,),
                f"PADDLE_TRAINER_ID is {number} on {node}, and must be {below} (PADDLE_TRAINERS_NUM)",
                "PADDLE_TRAINER_ID",
                below,
                "Number the trainers from 0 on, one number each.",
            )
            continue
        listed, own = _listed(held, _TRAINERS), held.get("PADDLE_CURRENT_ENDPOINT", "")
        if own and listed and (int(number) >= len(listed) or listed[int(number)] != own):
            yield _Fault(
                (node,),
                f"{node} is trainer {number} at {own}, but place {number} of {_TRAINERS} is "
                f"{listed[int(number)] if int(number) < len(listed) else 'none'}",
                "PADDLE_CURRENT_ENDPOINT",
                listed[int(number)] if int(number) < len(listed) else "an entry of the list",
                f"Make number and endpoint of {node} those of one place in the list.",
            )
    for number, nodes in taken.items():
        if len(nodes) > 1:
            yield _Fault(
                tuple(nodes),
                f"{fold(nodes)} all have PADDLE_TRAINER_ID={number}: servers hear one trainer twice and miss another",
                "PADDLE_TRAINER_ID",
                "a number of its own",
                "Number the trainers from 0 on, one number each.",
            )


def _uncovered(roles: Mapping[str, str], have: Mapping[str, Mapping[str, str]], fleet: Fleet) -> Iterator[_Fault]:
    """Servers of the list that no node is; only where every node has a role and knows its own address."""
    servers = [node for node, role in roles.items() if role == "PSERVER"]
    lists = split({node: have[node][_SERVERS] for node in roles if _SERVERS in have[node]})
    whole = len(roles) == len(fleet.nodes) and all("POD_IP" in have[node] for node in roles)
    if lists is None or lists.odd or not whole:
        return
    hosts = {node: have[node]["POD_IP"] for node in roles}
    for endpoint in lists.common.split(","):
        parts = split_endpoint(endpoint.strip())
        there = [node for node, host in hosts.items() if parts is not None and host == parts[0]]
        if there and not any(node in servers for node in there):
            yield _Fault(
                tuple(there),
                f"{_SERVERS} names {endpoint.strip()}, and {fold(there)}, whose address that is, is no server "
                f"(TRAINING_ROLE={have[there[0]]['TRAINING_ROLE']}): all trainers wait for it",
                "TRAINING_ROLE",
                "PSERVER",
                f"Start a server on {fold(there)}, or take {endpoint.strip()} out of the list everywhere.",
            )


@check(
    "ENV023",
    "tf-configs-do-not-fit",
    plan=_plan_tf,
    probes=(environment,),
    cost=_COST,
    severity=Severity.ERROR,
    evidence=("tensorflow/tensorflow#46169", "tensorflow/tensorflow#46827", "tensorflow/models#11143"),
)
def tf_configs_do_not_fit(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The TF_CONFIG that nodes have by themselves describe one cluster, with one task each.

    What it checks: on nodes whose own environment sets TF_CONFIG, that it is JSON, that `cluster` is the same
    everywhere, and that `task` is in it and nobody else's.

    Why it matters: tasks that were told of different clusters wait for peers that do not exist, with no time-out.

    Example: worker 1 twice, after the image of one worker was cloned.

    Fix: write TF_CONFIG from one list of hosts.

    Known limits: what the job's own files set is the lint rules' (TFP).

    Evidence: tensorflow/tensorflow#46169, tensorflow/tensorflow#46827, tensorflow/models#11143.
    """
    if not _applies(job, fleet, "TF_CONFIG"):
        yield not_applicable("TF_CONFIG", "the job has one node, is none of TensorFlow, or sets TF_CONFIG itself")
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
class _Told:
    """One TF_CONFIG: the cluster as text in one spelling, the hosts by role, and the task; None for no JSON."""

    cluster: str
    sizes: Mapping[str, int]
    role: str
    index: int


def _parsed(text: str) -> _Told | None:
    try:
        document = json.loads(text)
        cluster, task = document["cluster"], document.get("task") or {}
        sizes = {str(role): len(hosts) for role, hosts in cluster.items()}
        return _Told(json.dumps(cluster, sort_keys=True), sizes, str(task.get("type", "")), int(task.get("index", 0)))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def _unreadable(parsed: Mapping[str, _Told | None]) -> Iterator[_Fault]:
    broken = tuple(node for node, told in parsed.items() if told is None)
    if broken:
        yield _Fault(
            broken,
            f"TF_CONFIG on {fold(broken)} is no JSON with a cluster",
            "TF_CONFIG",
            '{"cluster": ..., "task": ...}',
            "Write it with json.dumps, in single quotes where a shell sets it.",
        )


def _clusters(parsed: Mapping[str, _Told | None]) -> Iterator[_Fault]:
    found = split({node: told.cluster for node, told in parsed.items() if told is not None})
    if found is not None and found.odd:
        yield _Fault(
            tuple(found.odd),
            f"TF_CONFIG describes another cluster on {fold(found.odd)} than on {fold(found.agreeing, 4)}",
            "TF_CONFIG",
            found.common,
            f"Give {fold(found.odd)} the cluster of the others: {found.common}",
        )


def _tasks(parsed: Mapping[str, _Told | None]) -> Iterator[_Fault]:
    taken: dict[tuple[str, int], list[str]] = {}
    for node, told in parsed.items():
        if told is None or not told.role:
            continue
        taken.setdefault((told.role, told.index), []).append(node)
        # An evaluator is no part of the cluster.
        if told.role != "evaluator" and told.index >= told.sizes.get(told.role, 0):
            count = told.sizes.get(told.role, 0)
            yield _Fault(
                (node,),
                f"{node} is {told.role} {told.index}, and its cluster has {count} of that role",
                "TF_CONFIG",
                f"an index below {count}" if count else f"one of {fold(told.sizes)}",
                f"Correct the task of {node}.",
            )
    for (role, index), nodes in taken.items():
        if len(nodes) > 1:
            yield _Fault(
                tuple(nodes),
                f"{fold(nodes)} all are {role} {index}: one of them cannot take its port or is never heard",
                "TF_CONFIG",
                "a task of its own",
                "Give each node its own type and index.",
            )
