"""Which scripts of a folder are the parts of one job: node0.sh and node1.sh, server.sh and worker.sh."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from preflight.job import WHOLE_JOB, Job, Known, Scope
from preflight.lazy.patterns import lazy_pattern

#: A name that counts the nodes of a job: node0.sh, n1.sh, worker-2.yaml, start_machine3.sh.
_NODE_BY_NUMBER = lazy_pattern(r"(?:^|.*[-_.])(?:node|n|worker|trainer|machine|host|server|rank|sv)[-_]?\d+\.[a-z]+")
#: What may differ between the names of sibling scripts.
_PART_OF_NAME = lazy_pattern(
    r"\d+|server|pserver|worker|trainer|master|slave|head|main|node|rank|machine|host|ps|[-_. ]"
)


def siblings(entries: Sequence[str], built: Mapping[str, Sequence[Job]]) -> dict[str, tuple[str, ...]]:
    """For each entry that is one of several parts of a job, all parts in order.

    Guesswork: the same training script under names that differ in numbers and roles, or the same known endpoint;
    and each launch (or each configuration of a node) says another node rank, rank, role or index. Files that their
    names number as the nodes of a job, as many as it has nodes, belong together also where two say the same rank:
    that is then the fault.
    """
    joined: dict[str, tuple[str, ...]] = {}
    for key_of in (_same_script, _same_endpoint):
        groups: dict[tuple[str, ...], list[str]] = {}
        for path in entries:
            key = key_of(path, built[path]) if path not in joined else None
            if key is not None:
                groups.setdefault(key, []).append(path)
        for group in groups.values():
            if _are_parts(group, built) or _are_numbered_nodes(group, built):
                joined.update(dict.fromkeys(group, tuple(group)))
    return joined


def _same_script(path: str, jobs: Sequence[Job]) -> tuple[str, ...] | None:
    """Folder, training script and a name that differs in numbers and roles only: node0.sh, node1.sh."""
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
    """Folder and the known place where the ranks meet."""
    if len(jobs) != 1:
        return None
    job, scope = jobs[0], _scopes(jobs[0])[0]
    servers = job.value("ps_server_endpoints", scope)
    where = (
        (servers,) if isinstance(servers, Known) else tuple(job.value(n, scope) for n in ("master_addr", "master_port"))
    )
    if (
        not all(isinstance(value, Known) for value in where)
        or Known("127.0.0.1") in where
        or Known("localhost") in where
    ):
        return None
    # A script and a configuration with the same endpoint are no two parts of one kind.
    kind = "launch" if job.launches else job.files[0].kind if job.files else ""
    return (path.rpartition("/")[0], kind, *(str(value) for value in where))


def _scopes(job: Job) -> tuple[Scope, ...]:
    """The scope of each launch; of the whole where a configuration stands alone."""
    return tuple(launch.scope for launch in job.launches) or (WHOLE_JOB,)


def _part(job: Job, scope: Scope) -> tuple[str, ...] | None:
    """Which part of a job a launch is: its node, rank, or role and index; None when it does not say."""
    found = []
    for name in ("node_rank", "rank", "ps_role", "ps_index", "ps_current_endpoint", "ray_role"):
        value = job.value(name, scope)
        if isinstance(value, Known):
            found.append(f"{name}={value.value}")
    return tuple(found) or None


def _parts(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> list[tuple[str, ...] | None]:
    return [_part(job, scope) for path in group for job in built[path] for scope in _scopes(job)]


def _are_parts(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> bool:
    """Whether several scripts each say which part of the job they are, and none says the same as another."""
    parts = _parts(group, built)
    return len(group) > 1 and None not in parts and len(set(parts)) == len(parts)


def _are_numbered_nodes(group: Sequence[str], built: Mapping[str, Sequence[Job]]) -> bool:
    """Whether the files are numbered like nodes, are as many as the job has, and each says which one it is."""
    if len(group) < 2 or not all(_NODE_BY_NUMBER.fullmatch(path.rpartition("/")[2].lower()) for path in group):
        return False
    parts = _parts(group, built)
    return None not in parts and any(
        {job.value(name, scope) for path in group for job in built[path] for scope in _scopes(job)}
        == {Known(len(group))}
        for name in ("nodes", "ps_workers")
    )
