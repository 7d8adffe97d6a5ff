"""Finds scripts in a folder that are parts of one job: node0.sh and node1.sh, server.sh and worker.sh."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from preflight._util.hostnames import is_loopback
from preflight.model.job import WHOLE_JOB, Job, Known, Launch, Scope

#: A name that numbers the nodes of a job: node0.sh, n1.sh, worker-2.yaml, start_machine3.sh.
_NODE_BY_NUMBER = re.compile(r"(?:^|.*[-_.])(?:node|n|worker|trainer|machine|host|server|rank|sv)[-_]?\d+\.[a-z]+")


#: The parts in which the names of sibling scripts may differ.
_PART_OF_NAME = re.compile(r"\d+|server|pserver|worker|trainer|master|slave|head|main|node|rank|machine|host|ps|[-_. ]")


def siblings(entries: Sequence[str], built: Mapping[str, Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    """For each entry that is one of several parts of a job, all parts in order.

    A guess: the files start the same training script and have names that differ in numbers and roles, or use the same
    known endpoint; and each launch (or each configuration of a node) has a different node rank, rank, role or index.
    Files that are numbered as the nodes of a job, as many as it has nodes, belong together even if two have the same
    rank: then that is the fault.
    """
    joined: dict[str, tuple[str, ...]] = {}
    for key_of in (_same_script, _same_endpoint):
        groups: dict[tuple[str, ...], list[str]] = {}
        for path in entries:
            key = key_of(path, built[path]) if path not in joined else None
            if key is not None:
                groups.setdefault(key, []).append(path)
        for group in groups.values():
            if _are_parts_of_one_job(group, built) or _are_numbered_nodes(group, built):
                joined.update(dict.fromkeys(group, tuple(group)))
    return joined


def _same_script(path: str, jobs: Sequence[Job]) -> tuple[str, ...] | None:
    """Folder, training script and a name that differs only in numbers and roles: node0.sh, node1.sh."""
    if len(jobs) != 1 or not jobs[0].launches:
        return None
    folder, _, name = path.rpartition("/")
    return (
        folder,
        jobs[0].launches[0].program,
        jobs[0].launches[0].launcher,
        _PART_OF_NAME.sub("", name.lower()),
    )


def _same_endpoint(path: str, jobs: Sequence[Job]) -> tuple[str, ...] | None:
    """Folder and the known endpoint of the ranks."""
    if len(jobs) != 1:
        return None
    job, scope = jobs[0], _scopes(jobs[0])[0]
    servers = job.value("ps_server_endpoints", scope)
    where = (
        (servers,) if isinstance(servers, Known) else tuple(job.value(n, scope) for n in ("master_addr", "master_port"))
    )
    known = [value.value for value in where if isinstance(value, Known)]
    if len(known) < len(where) or any(isinstance(value, str) and is_loopback(value) for value in known):
        return None
    # A script and a configuration with the same endpoint are not two parts of one kind.
    kind = "launch" if job.launches else job.files[0].kind if job.files else ""
    return (path.rpartition("/")[0], kind, *(str(value) for value in where))


def _scopes(job: Job) -> tuple[Scope, ...]:
    """The scope of each launch; that of the whole job for a configuration without a launch."""
    return tuple(launch.scope for launch in job.launches) or (WHOLE_JOB,)


def _part(job: Job, scope: Scope) -> tuple[str, ...] | None:
    """The part of a job that a launch represents: its node, rank, or role and index; None if it is not given."""
    found = []
    for name in ("node_rank", "rank", "ps_role", "ps_index", "ps_current_endpoint", "ray_role"):
        value = job.value(name, scope)
        if isinstance(value, Known):
            found.append(f"{name}={value.value}")
    return tuple(found) or None


def _parts(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> list[tuple[str, ...] | None]:
    return [_part(job, scope) for path in group for job in built[path] for scope in _scopes(job)]


def _are_parts_of_one_job(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> bool:
    """Whether several scripts each state their part of the job, and all parts differ."""
    parts = _parts(group, built)
    return len(group) > 1 and None not in parts and len(set(parts)) == len(parts)


def _are_numbered_nodes(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> bool:
    """Whether the files are numbered like nodes, are as many as the job has, and each gives its number."""
    if len(group) < 2 or not all(_NODE_BY_NUMBER.fullmatch(path.rpartition("/")[2].lower()) for path in group):
        return False
    parts = _parts(group, built)
    return None not in parts and any(
        {job.value(name, scope) for path in group for job in built[path] for scope in _scopes(job)}
        == {Known(len(group))}
        for name in ("nodes", "ps_workers")
    )


#: Kinds of configuration, and the launchers (or words of a launch) that need one of them.
_LAUNCHER_SIGNS = {"deepspeed": ("deepspeed",), "accelerate": ("accelerate",)}


#: The role in which a file refers to a configuration of such a kind.
_ROLES = {"deepspeed": "config", "accelerate": "accelerate"}


def companions(entries: Sequence[str], built: Mapping[str, Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    """For each entry that is a launch or its configuration, both, the launch first.

    A guess, and so as narrow as possible: the folder holds one script with launches that need such a configuration but
    name none, and one configuration of that kind, which no file names.
    """
    joined: dict[str, tuple[str, ...]] = {}
    for kind, signs in _LAUNCHER_SIGNS.items():
        folders: dict[str, list[str]] = {}
        for path in entries:
            if path not in joined:
                folders.setdefault(path.rpartition("/")[0], []).append(path)
        for here in folders.values():
            configurations = [path for path in here if _is_configuration(built[path], kind)]
            launching = [path for path in here if any(job.launches for job in built[path])]
            if (
                len(configurations) == 1
                and len(launching) == 1
                and _needs_configuration(built[launching[0]], kind, signs)
            ):
                pair = (launching[0], configurations[0])
                joined.update(dict.fromkeys(pair, pair))
    return joined


def _is_configuration(jobs: Sequence[Job], kind: str) -> bool:
    return len(jobs) == 1 and not jobs[0].launches and [file.kind for file in jobs[0].files] == [kind]


def _needs_configuration(jobs: Sequence[Job], kind: str, signs: Sequence[str]) -> bool:
    """Whether this is one job whose launches all need such a configuration and name none, wherever it may be."""
    if len(jobs) != 1 or any(file.kind == kind for file in jobs[0].files):
        return False
    named = any(reference.role == _ROLES[kind] for reference in jobs[0].references)
    return not named and all(_contains_sign(launch, signs) for launch in jobs[0].launches)


def _contains_sign(launch: Launch, signs: Sequence[str]) -> bool:
    return launch.launcher in signs and None not in launch.arguments
