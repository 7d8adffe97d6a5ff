"""Checks that the ranks of all nodes run in the same environment, and how this package's checks read it.

One probe makes two observations. The one in the ranks' context shows what ranks see on nodes where the job's own script
runs. The bare one shows what the node itself sets, for ranks that a launcher starts over ssh, and if the context is
unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from preflight._util.hostnames import is_loopback, split_endpoint
from preflight._util.sequences import grouped, join_some
from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job, Known, Strength, Unresolved, is_whole_number
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.plugins.authoring import Verdict, check, failed, memoize, not_applicable, passed, unknown
from preflight_checks.plans import (
    Group,
    all_of,
    combine_plans,
    default_of,
    group_of,
    has_launches,
    has_several_nodes,
    missing_facts,
    on_every_node,
    only_if,
    runs_on_several_machines,
    split,
    table,
)
from preflight_checks.probes.environment import Environment, environment
from preflight_checks.requirements import backends, fold, gpu_claims, has_parameter_servers, nodes_share_machine, scopes

#: Compared without regard to case, as NCCL does.
_CASELESS = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_NET")
_HIDDEN = "a value that is not shown"


@dataclass(frozen=True, slots=True)
class Setting:
    """One variable on one node: its value for comparison and for display, and the file that sets it, if any."""

    key: str
    shown: str
    file: str = ""

    def __str__(self) -> str:
        return f"{self.shown} ({self.file})" if self.file else self.shown


#: A variable that is not set.
UNSET = Setting("", "not set")


@dataclass(frozen=True, slots=True)
class ObservedEnvironments:
    """The environments that can be compared, and where they were observed, in words.

    `includes_job_variables`: whether they include the job's own variables.
    """

    by_node: Mapping[str, Environment]
    where: str
    includes_job_variables: bool


def _environment_claims(job: Job) -> tuple[Claim, ...]:
    return tuple(dict.fromkeys(claim for scope in scopes(job) for claim in job.environment(scope)))


def _params(job: Job) -> dict[str, object]:
    hashed = sorted({claim.quantity.removeprefix("env.") for claim in _environment_claims(job)})
    deepspeed = any(launch.launcher == "deepspeed" for launch in job.launches)
    return {"run_key": "", "hashed": hashed, "export_files": deepspeed}


#: Request the environment of every node as ranks have it, as a login without a terminal has it, and both.
plan_ranks = on_every_node(environment, params=_params, because=_environment_claims, context=True)
plan_logins = on_every_node(environment, params=_params, because=_environment_claims)
plan_both = combine_plans(plan_ranks, plan_logins)


def unknown_bare_environments(facts: Facts, subject: str) -> Iterator[Verdict]:
    """Yield one `unknown`, with the node names, per reason why the bare environment of nodes is missing."""
    bare_facts = ((row.node, row.fact) for row in facts.each(environment) if not row.asked.context)
    reasons = grouped((fact.reason, node) for node, fact in bare_facts if isinstance(fact, Unavailable))
    for reason, nodes in reasons.items():
        yield unknown(f"{subject} on {fold(nodes)}", reason)


def bare_environments(facts: Facts) -> dict[str, Environment]:
    """Return the bare environment of each node."""
    return _observed(facts, context=False)


def observed_environments(facts: Facts) -> ObservedEnvironments | None:
    """Return the ranks' environments, or the bare ones if fewer than two of those are known."""
    inside = _observed(facts, context=True)
    if len(inside) > 1:
        return ObservedEnvironments(inside, "where the ranks run", includes_job_variables=True)
    outside = bare_environments(facts)
    return (
        ObservedEnvironments(outside, "for a process started on the node", includes_job_variables=False)
        if len(outside) > 1
        else None
    )


def _observed(facts: Facts, *, context: bool) -> dict[str, Environment]:
    return _environments_by_context(facts)[context]


@memoize
def _environments_by_context(facts: Facts) -> dict[bool, dict[str, Environment]]:
    found: dict[bool, dict[str, Environment]] = {True: {}, False: {}}
    for row in facts.each(environment):
        if isinstance(row.fact, Observed):
            found[row.asked.context][row.node] = row.fact.value
    return found


def set_by_job(job: Job, *, known: bool = True) -> dict[str, tuple[Claim, ...]]:
    """Return the variables that the job's files set for its ranks, with the claims.

    With `known`, variables whose value is known only at run time are left out: with `X=$X`, the node sets the value.
    """
    found: dict[str, tuple[Claim, ...]] = {}
    for scope in scopes(job):
        for claim in job.environment(scope):
            if known and isinstance(claim.value, Unresolved):
                continue
            name = claim.quantity.removeprefix("env.")
            found[name] = tuple(dict.fromkeys((*found.get(name, ()), claim)))
    return found


def settings(environment: Environment) -> dict[str, Setting]:
    """Return every variable as its reader finds it: in the environment, or else in NCCL's files, in their order."""
    found = {name: Setting(_key(name, value), value or "empty") for name, value in environment.variables.items()}
    found.update({name: Setting(f"#{digest}", _HIDDEN) for name, digest in environment.digests.items()})
    for file in environment.nccl_files:
        for name, value in file.settings.items():
            found.setdefault(name, Setting(_key(name, value), value or "empty", file.path))
    return found


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """Nodes with identical settings, so that a large fleet's common settings are examined only once."""

    settings: Mapping[str, Setting]
    nodes: tuple[str, ...]


def groups_of(by_node: Mapping[str, Environment]) -> tuple[NodeGroup, ...]:
    """Return the nodes grouped by their settings, in order of their first nodes."""
    groups: dict[tuple[object, ...], list[str]] = {}
    for node, seen in by_node.items():
        files = tuple((file.path, *file.settings.items()) for file in seen.nccl_files)
        groups.setdefault((*seen.variables.items(), None, *seen.digests.items(), None, *files), []).append(node)
    return tuple(NodeGroup(settings(by_node[nodes[0]]), tuple(nodes)) for nodes in groups.values())


def setting(settings: Mapping[str, Setting], name: str) -> Setting:
    """Return the setting of `name`. A variable that is set to its reader's default counts as not set."""
    found = settings.get(name, UNSET)
    default = default_of(name)
    return Setting("", found.shown, found.file) if default is not None and found.key == f"={default}" else found


def _key(name: str, value: str) -> str:
    return f"={value.casefold() if name in _CASELESS else value}"


_READ_BY_TORCH = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
#: Only some participants need it.
_OPTIONAL = ("PADDLE_TRAINER_ENDPOINTS",)


_plan = combine_plans(plan_both, when=all_of(has_several_nodes, has_launches))


def is_relevant(name: str, group: Group, job: Job) -> bool:
    """Return whether a job of this kind reads a group's variables; a profile may set variables that are never read."""
    if group.job_kinds == "nccl":
        names, _ = backends(job)
        return "nccl" in names or bool(gpu_claims(job))
    if group.job_kinds == "ps" or name.startswith("PADDLE_") or name == "POD_IP":
        return any(job.value("ps_mode", scope) == Known(True) for scope in scopes(job)) or any(
            launch.launcher == "paddle" for launch in job.launches
        )
    if group.job_kinds == "torch":
        return not any(job.value("ps_mode", scope) == Known(True) for scope in scopes(job))
    # The rendezvous of these launchers reads them; other launchers do so only if a file names them.
    return group.job_kinds != "ranks" or name in _READ_BY_TORCH or _mentions_variable(name, job)


def _mentions_variable(name: str, job: Job) -> bool:
    """Return whether a file of the job names a variable, as `$NAME` or by reading it in a script."""
    word = re.compile(rf"\b{re.escape(name)}\b")
    return any(word.search(claim.spelling) or name in claim.alternatives for claim in job.claims)


def overriding_claims(name: str, job: Job) -> tuple[Claim, ...]:
    """Return the claims of the job's files that override the variable `name`; empty if there are none."""
    return tuple(
        claim
        for quantity in table("environment")["replaced_by"].get(name, ())
        for scope in scopes(job)
        for claim in job.value_claims(quantity, scope)
        if claim.strength >= Strength.FLAG and isinstance(claim.value, Known)
    )


@dataclass(frozen=True, slots=True)
class _Difference:
    name: str
    group: Group
    severity: Severity
    odd: Mapping[str, Setting]
    common: Setting
    agreeing: tuple[str, ...]

    @property
    def description(self) -> str:
        shown = fold((f"{node}: {value}" for node, value in self.odd.items()), 4)
        others = self.agreeing[0] if len(self.agreeing) == 1 else f"{len(self.agreeing)} others"
        return f"{self.name} is {shown}, but {self.common} on {others}"


@check("ENV020", "communication-variables-differ", plan=_plan, severity=Severity.ERROR)
@only_if(all_of(has_several_nodes, has_launches), "variables", "the job has one node, or no launch")
def communication_variables_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Variables that must be the same for all ranks have the same value on every node.

    What it checks: the variables of NCCL, UCX, libfabric, Gloo, Paddle, Horovod, MPI and the like in a process that is
    started the way ranks are, and the settings that NCCL adds from /etc/nccl.conf, ~/.nccl.conf or $NCCL_CONF_FILE.
    If the ranks' context cannot be entered, the node's own environment for a new process is compared.

    Why it matters: each rank derives its algorithm, protocol and transport from them. Ranks that choose differently
    hang in collectives of certain sizes, or cannot connect, but no message mentions the variable.

    Example: one node keeps `NCCL_ALGO=Tree` in /etc/nccl.conf from an old experiment.

    Fix: set the variable in the job, or remove it from the files of the differing node.

    Known limits: variables that a program sets itself are not seen. Values that look secret are compared by hash and
    not shown. Variables that the job's files set are the same everywhere and are skipped.
    """
    yield from missing_facts(facts, environment, "variables")
    environments = observed_environments(facts)
    if environments is None:
        yield unknown("variables", "the environment of fewer than two nodes is known")
        return
    differences = _differences(job, environments)
    together = grouped(((item.severity, tuple(item.odd)), item) for item in differences)
    for (severity, nodes), items in together.items():
        yield _finding(severity, nodes, items, environments.where, len(environments.by_node))
    if not differences:
        yield passed(f"variables {environments.where} on {len(environments.by_node)} nodes")


def _differences(job: Job, environments: ObservedEnvironments) -> list[_Difference]:
    ours = set_by_job(job)
    groups = groups_of(environments.by_node)
    names = sorted({name for group in groups for name in group.settings if name not in ours})
    return [found for name in names if (found := _difference(name, groups, job)) is not None]


def protocol_differences(job: Job, facts: Facts) -> dict[str, tuple[str, ...]]:
    """Return the variables with differences that keep ranks from communicating, each with the nodes that differ."""
    environments = observed_environments(facts)
    if environments is None or not job.launches:
        return {}
    found = [
        item
        for item in _differences(job, environments)
        if item.group.breaks_protocol and item.severity is Severity.ERROR
    ]
    count = len(environments.by_node)
    return {item.name: tuple(item.odd) if 2 * len(item.odd) < count else tuple(environments.by_node) for item in found}


def _difference(name: str, groups: Sequence[NodeGroup], job: Job) -> _Difference | None:
    group = group_of(name, frozenset(item.settings[name].shown for item in groups if name in item.settings))
    if group is None or group.kind != "agree" or overriding_claims(name, job):
        return None
    if len({setting(item.settings, name).key for item in groups}) < 2:
        return None
    values = {
        node: setting(item.settings, name)
        for item in groups
        for node in item.nodes
        if name in item.settings or name not in _OPTIONAL
    }
    divided = split({node: value.key for node, value in values.items()})
    if divided is None or not divided.odd:
        return None
    severity = group.severity if is_relevant(name, group, job) else Severity.INFO
    odd = {node: values[node] for node in divided.odd}
    if name == "MASTER_ADDR" and len(odd) == 1 and is_loopback(next(iter(odd.values())).shown):
        # Kubernetes operators tell the master that its own address is localhost.
        return None
    return _Difference(name, group, severity, odd, values[divided.agreeing[0]], divided.agreeing)


def _finding(
    severity: Severity, nodes: tuple[str, ...], items: list[_Difference], where: str, node_count: int
) -> Verdict:
    first = items[0]
    node, value = next(iter(first.odd.items()))
    names = fold(item.name for item in items)
    files = fold(sorted({setting.file for item in items for setting in item.odd.values() if setting.file}), 2)
    # Of two nodes, neither can be called the odd one.
    sided = tuple(dict.fromkeys((*nodes, *first.agreeing))) if 2 * len(nodes) >= node_count else nodes
    source = files or "its profile, /etc/environment or the configuration of the daemon that starts the ranks"
    return failed(
        f"{names} on {fold(nodes)}",
        f"{where}, {join_some([item.description for item in items], 6, '; ')}: {first.group.reason}",
        at=Evidence("environment", f"{first.name}: {value}", str(first.common), f"printenv {first.name}", node),
        also=[
            Evidence("environment", f"{item.name}: {next(iter(item.odd.values()))}", str(item.common), "", node)
            for item in items[1:6]
        ],
        nodes=sided,
        remedy=f"Set {names} in the job for all ranks, or fix {source} on {fold(nodes)}.",
        severity=severity,
        confidence=Confidence.HIGH if severity is Severity.ERROR else Confidence.MEDIUM,
    )


@check("ENV021", "node-identities-collide", plan=_plan, severity=Severity.ERROR)
@only_if(
    all_of(runs_on_several_machines, has_launches),
    "identities",
    "the job has one node, no launch, or runs on one machine",
)
def node_identities_collide(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Values that must be unique per node do not occur on two nodes.

    What it checks: NCCL_HOSTID, NODE_RANK, MACHINE_RANK, PADDLE_CURRENT_ENDPOINT and POD_IP, if a node's own
    environment sets them and the job does not.

    Why it matters: two nodes that claim one rank collide, and the job waits forever for the missing one. With equal
    NCCL_HOSTIDs, NCCL treats GPUs of two machines as local peers.

    Example: an image with `NODE_RANK=0` in /etc/environment.

    Fix: remove the variable from the image, or set it on each node.

    Known limits: a variable that the job's files set, or that a flag overrides, is skipped.
    """
    yield from missing_facts(facts, environment, "identities")
    environments = observed_environments(facts)
    if environments is None:
        yield unknown("identities", "the environment of fewer than two nodes is known")
        return
    ours = set_by_job(job)
    groups = groups_of(environments.by_node)
    wrong = False
    for name in sorted({name for item in groups for name in item.settings if name not in ours}):
        group = group_of(name)
        if (
            group is None
            or group.kind != "distinct"
            or overriding_claims(name, job)
            or not is_relevant(name, group, job)
        ):
            continue
        holders: dict[Setting, list[str]] = {}
        for item in groups:
            if name in item.settings:
                holders.setdefault(item.settings[name], []).extend(item.nodes)
        for value, nodes in holders.items():
            if len(nodes) > 1:
                wrong = True
                yield _collision_finding(name, value, nodes, group, environments.where)
    if not wrong:
        yield passed(f"identities on {len(environments.by_node)} nodes")


def _collision_finding(name: str, value: Setting, nodes: list[str], group: Group, where: str) -> Verdict:
    return failed(
        f"{name} on {fold(nodes)}",
        f"{where}, {name} is {value} on {fold(nodes)} share a value that must be unique per node: {group.reason}",
        at=Evidence("environment", f"{name}={value}", "a unique value", f"printenv {name}", nodes[0]),
        also=[Evidence("environment", f"{name}={value}", "a unique value", f"printenv {name}", nodes[1])],
        nodes=nodes,
        remedy=f"Remove {name} from the environment of {fold(nodes)}, or set it to a unique value on each node.",
    )


# Checks that the roles, numbers and addresses in the nodes' own environments describe one job.


_SERVERS, _TRAINERS = "PADDLE_PSERVERS_IP_PORT_LIST", "PADDLE_TRAINER_ENDPOINTS"


def _applies(job: Job, fleet: Fleet, variable: str) -> bool:
    """Return whether this job reads `variable`, and the nodes' own environment can set it."""
    several = len(fleet.nodes) > 1 and bool(job.launches) and not nodes_share_machine(fleet)
    # A variable that nothing in the job reads may stay in an image.
    read = (
        has_parameter_servers(job)
        if variable == "TRAINING_ROLE"
        else not job.about("backend") and not job.about("uses_ddp")
    )
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
    plan=combine_plans(plan_logins, when=lambda job, fleet: _applies(job, fleet, "TRAINING_ROLE")),
    severity=Severity.ERROR,
)
def roles_of_nodes_do_not_fit(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """If nodes get their role from their own environment, the roles form one consistent parameter-server job.

    What it checks: on each node whose own environment sets TRAINING_ROLE, a server's POD_IP:PADDLE_PORT is in the list
    of servers, and a trainer's number is below the number of trainers, is unique, and is the index of its own endpoint.
    If every node has a role, every server in the list has a node.

    Why it matters: a server that is not in the list is never used. If two trainers share a number, some data is not
    used, and the servers wait for a trainer that does not exist.

    Example: PADDLE_TRAINER_ID=1 on two nodes that were made from one image.

    Fix: set role, number and address for each node in the command that starts it.

    Known limits: values that the job's files set are covered by lint (PPS), lists that differ between nodes by ENV020.
    One process per node is assumed if its own environment sets a role.
    """
    if not _applies(job, fleet, "TRAINING_ROLE"):
        yield not_applicable("roles", "the job has one node, no parameter servers, or sets the roles itself")
        return
    blind = tuple(unknown_bare_environments(facts, "roles"))
    yield from blind
    observed = {node: seen.variables for node, seen in bare_environments(facts).items()}
    roles = {node: held["TRAINING_ROLE"].upper() for node, held in observed.items() if "TRAINING_ROLE" in held}
    if not roles:
        if not blind and not observed:
            yield unknown("roles", "the environment of every node is unknown")
        elif not blind:
            yield not_applicable("roles", "no node's environment sets TRAINING_ROLE")
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


def _listed_values(variables: Mapping[str, str], name: str) -> list[str]:
    return [item.strip() for item in variables.get(name, "").split(",") if item.strip()]


def _servers(roles: Mapping[str, str], observed: Mapping[str, Mapping[str, str]]) -> Iterator[_Fault]:
    for node, role in roles.items():
        variables = observed[node]
        listed = _listed_values(variables, _SERVERS)
        if role not in ("PSERVER", "TRAINER"):
            yield _Fault(
                (node,),
                f"TRAINING_ROLE is {variables['TRAINING_ROLE']} on {node}, but Paddle accepts only TRAINER and PSERVER",
                "TRAINING_ROLE",
                "TRAINER or PSERVER",
                f"Set TRAINING_ROLE to TRAINER or PSERVER on {node}.",
            )
        elif not listed and _SERVERS not in variables:
            yield _Fault(
                (node,),
                f"{node} is a {role.lower()} without {_SERVERS}, so it cannot find the servers",
                _SERVERS,
                "the list of servers",
                f"Set {_SERVERS} on {node} as on the other nodes.",
            )
        elif role == "PSERVER" and "POD_IP" in variables and "PADDLE_PORT" in variables:
            own = f"{variables['POD_IP']}:{variables['PADDLE_PORT']}"
            if own not in listed:
                yield _Fault(
                    (node,),
                    f"{node} listens at {own} (POD_IP, PADDLE_PORT), which {_SERVERS} does not list "
                    f"({fold(listed, 4)})",
                    "PADDLE_PORT",
                    fold(listed, 4),
                    f"Set the address and port of {node} to those in the list, or add {own} to the list on every node.",
                )


def _trainers(roles: Mapping[str, str], observed: Mapping[str, Mapping[str, str]]) -> Iterator[_Fault]:
    used: dict[str, list[str]] = {}
    for node, role in roles.items():
        variables = observed[node]
        number, count = variables.get("PADDLE_TRAINER_ID", ""), variables.get("PADDLE_TRAINERS_NUM", "")
        if role != "TRAINER" or not number:
            continue
        used.setdefault(number, []).append(node)
        if not is_whole_number(number) or (is_whole_number(count) and int(number) >= int(count)):
            below = f"below {count}" if is_whole_number(count) else "a number of at least 0"
            yield _Fault(
                (node,),
                f"PADDLE_TRAINER_ID is {number} on {node}, but must be {below} (PADDLE_TRAINERS_NUM)",
                "PADDLE_TRAINER_ID",
                below,
                "Number the trainers consecutively from 0.",
            )
            continue
        listed, own = _listed_values(variables, _TRAINERS), variables.get("PADDLE_CURRENT_ENDPOINT", "")
        if own and listed and (int(number) >= len(listed) or listed[int(number)] != own):
            yield _Fault(
                (node,),
                f"{node} is trainer {number} at {own}, but entry {number} of {_TRAINERS} is "
                f"{listed[int(number)] if int(number) < len(listed) else 'none'}",
                "PADDLE_CURRENT_ENDPOINT",
                listed[int(number)] if int(number) < len(listed) else "an entry of the list",
                f"Set the number and endpoint of {node} to those of one entry in the list.",
            )
    for number, nodes in used.items():
        if len(nodes) > 1:
            yield _Fault(
                tuple(nodes),
                f"{fold(nodes)} all have PADDLE_TRAINER_ID={number}: the servers see one trainer twice and wait for "
                "another",
                "PADDLE_TRAINER_ID",
                "a unique number",
                "Number the trainers consecutively from 0.",
            )


def _servers_without_node(
    roles: Mapping[str, str], observed: Mapping[str, Mapping[str, str]], fleet: Fleet
) -> Iterator[_Fault]:
    """Yield the listed servers that are not any node, if every node has a role and knows its own address."""
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
                f"{_SERVERS} names {endpoint.strip()}, but {fold(first_nodes)}, at that address, is not a server "
                f"(TRAINING_ROLE={observed[first_nodes[0]]['TRAINING_ROLE']}): all trainers wait for it",
                "TRAINING_ROLE",
                "PSERVER",
                f"Start a server on {fold(first_nodes)}, or remove {endpoint.strip()} from the list on every node.",
            )


@check(
    "ENV023",
    "tf-configs-do-not-fit",
    plan=combine_plans(plan_logins, when=lambda job, fleet: _applies(job, fleet, "TF_CONFIG")),
    severity=Severity.ERROR,
)
def tf_configs_do_not_fit(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The TF_CONFIG values in the nodes' own environments describe one cluster, with a different task each.

    What it checks: on nodes whose own environment sets TF_CONFIG, it is JSON, `cluster` is the same everywhere, and
    `task` is part of it and unique.

    Why it matters: tasks with different cluster definitions wait for peers that do not exist, without a timeout.

    Example: worker 1 twice, after the image of one worker was cloned.

    Fix: write TF_CONFIG from one list of hosts.

    Known limits: values that the job's files set are covered by lint (TFP).
    """
    if not _applies(job, fleet, "TF_CONFIG"):
        yield not_applicable("TF_CONFIG", "the job has one node, does not use TensorFlow, or sets TF_CONFIG itself")
        return
    blind = tuple(unknown_bare_environments(facts, "TF_CONFIG"))
    yield from blind
    cluster_texts = {
        node: seen.variables["TF_CONFIG"]
        for node, seen in bare_environments(facts).items()
        if "TF_CONFIG" in seen.variables
    }
    if not cluster_texts:
        if not blind:
            yield not_applicable("TF_CONFIG", "no node's environment sets it")
        return
    parsed = {node: _parse_participants(text) for node, text in cluster_texts.items()}
    faults = [*_unreadable(parsed), *_clusters(parsed), *_tasks(parsed)]
    for fault in faults:
        yield failed(
            f"TF_CONFIG on {fold(fault.nodes)}",
            fault.message,
            at=Evidence(
                "environment", cluster_texts[fault.nodes[0]], fault.expected, "printenv TF_CONFIG", fault.nodes[0]
            ),
            nodes=fault.nodes,
            remedy=fault.remedy,
        )
    if not faults:
        yield passed(f"TF_CONFIG on {len(cluster_texts)} nodes")


@dataclass(frozen=True, slots=True)
class _Participants:
    """One parsed TF_CONFIG: the cluster as a normalized string, the hosts by role, and the task; None if it is not
    JSON.
    """

    cluster: str
    sizes: Mapping[str, int]
    role: str
    index: int


def _parse_participants(text: str) -> _Participants | None:
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
            "Write it with json.dumps, and in single quotes in a shell.",
        )


def _clusters(parsed: Mapping[str, _Participants | None]) -> Iterator[_Fault]:
    found = split({node: parts_of_node.cluster for node, parts_of_node in parsed.items() if parts_of_node is not None})
    if found is not None and found.odd:
        yield _Fault(
            tuple(found.odd),
            f"TF_CONFIG on {fold(found.odd)} and on {fold(found.agreeing, 4)} describe different clusters",
            "TF_CONFIG",
            found.common,
            f"Set the cluster of the other nodes on {fold(found.odd)}: {found.common}",
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
