"""Where a check looks: which nodes the job will have, and in which context its ranks really run.

Both may come from the user (always taken) or from the job's own files (only with `trust_job`: repository content
is hostile until somebody vouches for it). What cannot be determined is said, never replaced by a guess.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from preflight.errors import UsageError
from preflight.job import Claim, Job, Known, Launch, Scope, Value
from preflight.job.hostlist import outside_brackets
from preflight.job.hostname import is_hostname, split_endpoint
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.node.wire import Context
from preflight.recording import Node, Origin
from preflight.redact import HIDDEN

#: Variables of the job that must not be laid over a child: they would change what observes, not what is observed.
_NEVER = ("PATH", "HOME", "SHELL", "USER", "LOGNAME", "PYTHONSTARTUP", "PYTHONINSPECT")

_USER = lazy_pattern(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}", re.ASCII)

#: Where each process of the job is reached; the lists name their nodes in the order of ranks.
_ENDPOINTS = ("ps_worker_endpoints", "ps_server_endpoints")

#: Launchers that pip installs as console scripts: the ranks get the interpreter that the script itself runs in.
_CONSOLE_SCRIPTS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "accelerate": "accelerate",
    "llamafactory-cli": "llamafactory-cli",
}


@dataclass(frozen=True, slots=True)
class ContextChoice:
    """The job context, or why there is none; `provenance` says which claims or options it came from."""

    context: Context | None
    provenance: str
    missing: str = ""
    prelude: tuple[Claim, ...] = field(default=())


def named_nodes(hosts: str, hostfile: Path | None) -> tuple[tuple[Node, ...], Origin | None]:
    """The nodes that the user named, in rank order, and how; none where nothing was named.

    Raises:
        UsageError: a name is no host name, or the list is none.
    """
    if hosts:
        return _from_names(_expand(hosts)), Origin("hosts", f"--hosts {hosts}")
    if hostfile is not None:
        return _from_hostfile(hostfile), Origin("hostfile", f"--hostfile {hostfile}")
    return (), None


def nodes_of_jobs(jobs: Sequence[Job], *, trust_job: bool) -> tuple[tuple[Node, ...], str]:
    """The nodes that the job's own files name, in rank order, and where they do.

    Raises:
        UsageError: they name none, or nobody vouches for them.
    """
    claimed, where = claimed_hosts(jobs)
    if not claimed:
        raise UsageError(
            "which nodes? name them with --hosts node[1-4] or --hostfile FILE, run inside an allocation, "
            "or use --on local"
        )
    if not trust_job:
        shown = ", ".join(claimed[:4]) + (" ..." if len(claimed) > 4 else "")
        raise UsageError(
            f"the job's own files name the nodes {shown}; "
            "pass --trust-job to connect to them, or name them with --hosts"
        )
    return _from_names(claimed), where


def _expand(hosts: str) -> tuple[str, ...]:
    if "[" not in hosts:
        return tuple(outside_brackets(hosts))
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    names: list[str] = []
    try:
        for part in outside_brackets(hosts):
            # No groups: their definitions may be commands, which nobody asked to be run.
            names.extend([part] if "[" not in part else NodeSet(part, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise UsageError(f"--hosts {hosts}: {error}") from None
    return tuple(names)


def _from_names(names: Sequence[str], slots: Sequence[int | None] = ()) -> tuple[Node, ...]:
    nodes: list[Node] = []
    for index, name in enumerate(names):
        user, at, host = name.rpartition("@")
        if at and not _USER.fullmatch(user):
            raise UsageError(f"{user!r} of {name!r} is no user name: letters, digits, dots, _ and - are expected")
        if not is_hostname(host):
            raise UsageError(
                f"{name!r} is no host name: letters, digits, dots and hyphens are expected, and no leading hyphen"
            )
        if host in (node.name for node in nodes):
            raise UsageError(f"{host} is named twice among the nodes; each node runs one agent")
        nodes.append(Node(host, index, name, slots[index] if slots else None))
    if not nodes:
        raise UsageError("the list of nodes is empty")
    return tuple(nodes)


def _from_hostfile(path: Path) -> tuple[Node, ...]:
    from preflight.sources.base import SourceFile
    from preflight.sources.hostfile import HostfileSource
    from preflight.sources.tree import MemoryTree

    try:
        text = path.read_text(encoding="utf-8", errors="replace")
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
    return _from_names(names, [_slots(job, name) for name in names])


def _slots(job: Job, host: str) -> int | None:
    return _whole(job.value("host_slots", Scope(node=host)))


def claimed_hosts(jobs: Sequence[Job]) -> tuple[tuple[str, ...], str]:
    """The names of the nodes as the job's files have them, in rank order, and which place says so.

    A list of hosts counts first, then the endpoints of the job's own processes: trainers, then servers.
    """
    for job in jobs:
        for scope in (*(launch.scope for launch in job.launches), Scope()):
            names = tuple(str(name) for name in _listed(job, "hosts", scope))
            if names:
                return names, _where(job, "hosts", scope)
    for job in jobs:
        for scope in (*(launch.scope for launch in job.launches), Scope()):
            spelled = [one for quantity in _ENDPOINTS for one in _listed(job, quantity, scope)]
            parts = [split_endpoint(str(one)) for one in spelled]
            hosts = dict.fromkeys(part[0] for part in parts if part is not None and not _is_loopback(part[0]))
            if hosts:
                said = next(quantity for quantity in _ENDPOINTS if _listed(job, quantity, scope))
                return tuple(hosts), _where(job, said, scope)
    return (), ""


def _listed(job: Job, quantity: str, scope: Scope) -> tuple[object, ...]:
    value = job.value(quantity, scope)
    return value.value if isinstance(value, Known) and isinstance(value.value, tuple) else ()


def _where(job: Job, quantity: str, scope: Scope) -> str:
    claims = job.setting(quantity, scope) or job.about(quantity)
    return f"{claims[0].span.path}:{claims[0].span.line}" if claims else job.name


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host == "::1" or host.startswith("127.")


def claimed_count(jobs: Sequence[Job]) -> int | None:
    """On how many nodes the job runs, where its files say so."""
    for job in jobs:
        for scope in (*(launch.scope for launch in job.launches), Scope()):
            count = _whole(job.value("nodes", scope))
            if count:
                return count
    return None


def _whole(value: Value) -> int | None:
    return value.value if isinstance(value, Known) and isinstance(value.value, int) else None


def context_of(job: Job, *, python: str, directory: str, trust_job: bool, prelude: bool) -> ContextChoice:
    """The context of the job's ranks: what the user named first, then what the job's files claim, if trusted."""
    launch = main_launch(job)
    scope = launch.scope if launch is not None else Scope()
    found = {name: _text(job, name, scope) for name in ("interpreter", "working_directory", "container")}
    if found["container"] and not python and trust_job:
        return ContextChoice(
            None, "", f"the ranks run in the container {found['container']}, which cannot be entered from here yet"
        )
    interpreter = python or (found["interpreter"] if trust_job else "")
    script = _CONSOLE_SCRIPTS.get(launch.launcher, "") if launch is not None and not found["interpreter"] else ""
    if not interpreter and not (script and trust_job):
        return ContextChoice(None, "", _nothing_to_run(found["interpreter"], script))
    environment = _environment(job, scope) if trust_job else {}
    lines = job.setting("prelude", scope) if prelude and trust_job else ()
    where = directory or (found["working_directory"] if trust_job else "")
    script = "" if interpreter else script
    says = [f"interpreter {interpreter} ({'--python' if python else 'the job'})"]
    if script:
        says = [f"the Python that {script} runs in on each node"]
    if where:
        says.append(f"directory {where} ({'--directory' if directory else 'the job'})")
    taken = f"{len(environment)} variable{'' if len(environment) == 1 else 's'} of the job"
    says.append(taken if trust_job else "no variables of the job (--trust-job takes them)")
    if lines:
        says.append(f"{len(lines)} set-up lines of the job")
    context = Context(
        interpreter=interpreter,
        directory=where or None,
        environment=environment,
        prelude=[str(value) for claim in lines for value in claim.alternatives],
        provenance=", ".join(says),
        script=script,
    )
    return ContextChoice(context, context.provenance, prelude=lines)


def _nothing_to_run(interpreter: str, script: str) -> str:
    if interpreter:
        return f"the job names the interpreter {interpreter!r}; pass --trust-job to use it, or --python PATH"
    if script:
        return (
            f"the job starts its ranks with {script}; pass --trust-job to use the Python it runs in, or --python PATH"
        )
    return "nothing names the interpreter the ranks run with; pass --python PATH"


def main_launch(job: Job) -> Launch | None:
    """The launch whose ranks are looked at: the first that needs several processes, else the first."""
    for launch in job.launches:
        if (_whole(job.value("world_size", launch.scope)) or 0) > 1:
            return launch
    return job.launches[0] if job.launches else None


def _environment(job: Job, scope: Scope) -> dict[str, str]:
    found: dict[str, str] = {}
    for claim in job.environment(scope):
        name = claim.quantity.removeprefix("env.")
        if name in _NEVER or not isinstance(claim.value, Known) or claim.value.value is None:
            continue
        text = str(claim.value.value)
        # A secret was taken out when the file was read; its asterisks are no value.
        if HIDDEN not in text:
            found[name] = text
    return found


def _text(job: Job, quantity: str, scope: Scope) -> str:
    value = job.value(quantity, scope)
    return value.value if isinstance(value, Known) and isinstance(value.value, str) else ""
