"""The nodes that the job will have, and the context in which its ranks actually run.

Both may come from the user (always accepted) or from the job's own files (only with `trust_job`: repository content may
be hostile unless the user trusts it). What cannot be determined is reported, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from preflight._util.hostnames import is_hostname, is_loopback, max_host_count, split_endpoint, split_outside_brackets
from preflight._util.redaction import HIDDEN
from preflight._util.sequences import join_some
from preflight._util.usage_error import UsageError
from preflight.agent.wire import Context
from preflight.model.job import Claim, Job, Known, Launch, Scope
from preflight.model.job.value import items, known_number, known_text
from preflight.model.recording import Node, Origin

#: Variables of the job that a child must not get: they would change the observer instead of what it observes.
_EXCLUDED_VARIABLES = ("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PYTHONSTARTUP", "PYTHONINSPECT")

#: Twice the largest clusters; a longer list is a mistake, or an attempt to fill the memory.
MAX_NODES = 32_768

_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)

#: Addresses of the job's processes; the lists name their nodes in the order of ranks.
_ENDPOINTS = ("ps_worker_endpoints", "ps_server_endpoints")

#: Launchers that pip installs as console scripts: the ranks use the script's own interpreter.
_CONSOLE_SCRIPTS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "llamafactory-cli": "llamafactory-cli",
}


#: How the reason begins why the context of ranks in a container is not entered, and the words of a provenance for an
#: interpreter that the user named on the host of such ranks.
IN_CONTAINER, OUTSIDE = "the ranks run in the container", "outside of the container"


@dataclass(frozen=True, slots=True)
class ContextChoice:
    """The job context, or why there is none; `provenance` names the claims or options it came from."""

    context: Context | None
    provenance: str
    missing: str = ""
    prelude: tuple[Claim, ...] = field(default=())


def named_nodes(hosts: str, hostfile: Path | None) -> tuple[tuple[Node, ...], Origin | None]:
    """The nodes that the user named, in rank order, and by which option; empty if none were named.

    Raises:
        UsageError: a name is not a host name, or the list is invalid.
    """
    if hosts:
        return _from_names(_expand(hosts)), Origin("hosts", f"--hosts {hosts}")
    if hostfile is not None:
        return _from_hostfile(hostfile), Origin("hostfile", f"--hostfile {hostfile}")
    return (), None


def nodes_of_jobs(jobs: Sequence[Job], *, trust_job: bool) -> tuple[tuple[Node, ...], str]:
    """The nodes that the job's own files name, in rank order, and the locations of the names.

    Raises:
        UsageError: they name none, or they are not trusted.
    """
    claimed, where = claimed_hosts(jobs)
    if not claimed:
        raise UsageError(
            "no nodes were named; use --hosts node[1-4], --hostfile FILE or --on local, or run inside an allocation"
        )
    if not trust_job:
        shown = join_some(claimed, 4)
        raise UsageError(
            f"only the job's own files name nodes ({shown}); "
            "pass --trust-job to connect to them, or name them with --hosts"
        )
    return _from_names(claimed), where


def _expand(hosts: str) -> tuple[str, ...]:
    if "[" not in hosts:
        return tuple(split_outside_brackets(hosts))
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    names: list[str] = []
    if (count := max_host_count(hosts)) > MAX_NODES:
        raise UsageError(f"--hosts {hosts:.200}: this is up to {count} nodes, but the limit is {MAX_NODES}")
    try:
        for part in split_outside_brackets(hosts):
            # Groups are not expanded: their definitions may be commands, which the user did not ask to run.
            names.extend([part] if "[" not in part else NodeSet(part, resolver=RESOLVER_NOGROUP))
    except (NodeSetException, ValueError) as error:
        raise UsageError(f"--hosts {hosts:.200}: {error}") from None
    return tuple(names)


def _from_names(names: Sequence[str], slots: Sequence[int | None] = ()) -> tuple[Node, ...]:
    if len(names) > MAX_NODES:
        raise UsageError(f"the list names {len(names)} nodes, but the limit is {MAX_NODES}")
    nodes: list[Node] = []
    known: set[str] = set()
    for index, name in enumerate(names):
        user, at, host = name.rpartition("@")
        if at and not _USER.fullmatch(user):
            raise UsageError(f"{user!r} of {name!r} is not a user name; expected letters, digits, dots, _ and -")
        if not is_hostname(host):
            raise UsageError(
                f"{name!r} is not a host name; expected letters, digits, dots and hyphens, without a leading hyphen"
            )
        if host in known:
            raise UsageError(f"{host} is listed twice; list each node once, because it runs one agent")
        known.add(host)
        nodes.append(Node(host, index, name, slots[index] if slots else None))
    if not nodes:
        raise UsageError("the list of nodes is empty")
    return tuple(nodes)


def _from_hostfile(path: Path) -> tuple[Node, ...]:
    from preflight._util import regular_file
    from preflight.sources.base import SourceFile
    from preflight.sources.configs.hostfile import HostfileSource
    from preflight.sources.formats.tree import MAX_BYTES, MemoryTree

    try:
        text = regular_file.read_text(path, MAX_BYTES, errors="replace")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    reading = HostfileSource().read(SourceFile(path.name, text, "", len(text)), MemoryTree({}), role="hostfile")
    if reading.notes:
        note = reading.notes[0]
        raise UsageError(f"{path}:{note.span.line}: {note.message}")
    job = Job(path.name, claims=reading.claims)
    names, _ = claimed_hosts((job,))
    if not names:
        raise UsageError(f"{path} names no hosts")
    return _from_names(names, [known_number(job.value("host_slots", Scope(node=name))) for name in names])


def claimed_hosts(jobs: Sequence[Job]) -> tuple[tuple[str, ...], str]:
    """The names of the nodes in the job's files, in rank order, and their location.

    A list of hosts takes precedence, then the endpoints of the job's own processes: trainers, then servers.
    """
    for job in jobs:
        for scope in (*(launch.scope for launch in job.launches), Scope()):
            names = items(job.value("hosts", scope))
            if names:
                return names, _where(job, "hosts", scope)
    for job in jobs:
        for scope in (*(launch.scope for launch in job.launches), Scope()):
            spelled = [endpoint for quantity in _ENDPOINTS for endpoint in items(job.value(quantity, scope))]
            parts = [split_endpoint(endpoint) for endpoint in spelled]
            hosts = dict.fromkeys(part[0] for part in parts if part is not None and not is_loopback(part[0]))
            if hosts:
                listed = next(quantity for quantity in _ENDPOINTS if items(job.value(quantity, scope)))
                return tuple(hosts), _where(job, listed, scope)
    return (), ""


def _where(job: Job, quantity: str, scope: Scope) -> str:
    claims = job.setting(quantity, scope) or job.about(quantity)
    return f"{claims[0].span.path}:{claims[0].span.line}" if claims else job.name


def claimed_count(jobs: Sequence[Job]) -> int | None:
    """The number of nodes of the job, if its files give it."""
    for job in jobs:
        for scope in (*(launch.scope for launch in job.launches), Scope()):
            count = known_number(job.value("nodes", scope))
            if count:
                return count
    return None


def context_of(job: Job, *, python: str, directory: str, trust_job: bool, prelude: bool) -> ContextChoice:
    """The context of the job's ranks: from the user first, then from the job's files, if trusted."""
    launch = main_launch(job)
    scope = launch.scope if launch is not None else Scope()
    found = {
        name: known_text(job.value(name, scope)) or "" for name in ("interpreter", "working_directory", "container")
    }
    if found["container"] and not python and trust_job:
        return ContextChoice(None, "", f"{IN_CONTAINER} {found['container']}, which preflight cannot enter yet")
    interpreter = python or (found["interpreter"] if trust_job else "")
    script = _CONSOLE_SCRIPTS.get(launch.launcher, "") if launch is not None and not found["interpreter"] else ""
    if not interpreter and not (script and trust_job):
        return ContextChoice(None, "", _nothing_to_run(found["interpreter"], script))
    environment = _environment(job, scope) if trust_job else {}
    lines = job.setting("prelude", scope) if prelude and trust_job else ()
    where = directory or (found["working_directory"] if trust_job else "")
    script = "" if interpreter else script
    parts = [f"interpreter {interpreter} ({'--python' if python else 'the job'})"]
    if script:
        parts = [f"the Python that {script} uses on each node"]
    if where:
        parts.append(f"directory {where} ({'--directory' if directory else 'the job'})")
    if found["container"]:
        parts.append(f"{OUTSIDE} {found['container']}")
    taken = f"{len(environment)} variable{'' if len(environment) == 1 else 's'} of the job"
    parts.append(taken if trust_job else "no variables of the job (--trust-job uses them)")
    if lines:
        parts.append(f"{len(lines)} setup lines of the job")
    context = Context(
        interpreter=interpreter,
        directory=where or None,
        environment=environment,
        prelude=[str(value) for claim in lines for value in claim.alternatives],
        provenance=", ".join(parts),
        script=script,
    )
    return ContextChoice(context, context.provenance, prelude=lines)


def _nothing_to_run(interpreter: str, script: str) -> str:
    if interpreter:
        return f"the job names the interpreter {interpreter!r}; pass --trust-job to use it, or --python PATH"
    if script:
        return f"the job starts its ranks with {script}; pass --trust-job to use that script's Python, or --python PATH"
    return "the Python interpreter of the ranks is unknown; pass --python PATH"


def main_launch(job: Job) -> Launch | None:
    """The launch whose ranks are examined: the first that needs several processes, otherwise the first."""
    for launch in job.launches:
        if (known_number(job.value("world_size", launch.scope)) or 0) > 1:
            return launch
    return job.launches[0] if job.launches else None


def _environment(job: Job, scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for claim in job.environment(scope):
        name = claim.quantity.removeprefix("env.")
        if name in _EXCLUDED_VARIABLES or not isinstance(claim.value, Known) or claim.value.value is None:
            continue
        text = str(claim.value.value)
        # A secret was removed when the file was read; its asterisks are not a value.
        if HIDDEN not in text:
            found[name] = text
    return found
