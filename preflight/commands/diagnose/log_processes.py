"""Finds the process that wrote a line, from the tags that launchers put before lines and from file names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from preflight._util.hostnames import is_hostname
from preflight.commands.diagnose.diagnosis import LogProcess

#: Unambiguous tags; one occurrence is enough. A line may have several.
_TAGS = tuple(
    re.compile(tag)
    for tag in (
        # torchrun --tee: `[default3]:`, the role and the process of the node; torch itself: `[rank3]:`.
        r"\[(?:rank|RANK|Rank ?)(?P<rank>\d{1,6})\]: ?",
        r"\[(?P<role>[A-Za-z_]{1,40}?)(?P<local_rank>\d{1,4})\]:",
        # Open MPI --tag-output, PRRTE (Open MPI 5).
        r"\[(?:\d{1,6}|[\w.@-]{1,200}),(?P<rank>\d{1,6})\]<(?:stdout|stderr|stddiag)>: ?",
        # kubectl logs --prefix.
        r"\[pod/(?P<pod>[\w.-]{1,253})/[\w.-]{1,100}\] ",
        # Ray: the actor, its process and its node.
        r"\((?P<role>[\w.:<>-]{1,100}) pid=\d{1,10}(?:, ip=(?P<host>[\w.:-]{1,100}))?\) ",
        r"slurmstepd-(?P<host>[\w.-]{1,253}): ",
        # Docker Compose.
        r"(?P<pod>[\w.-]{1,100}) {1,60}\| ",
    )
)
#: Ambiguous tags, which most lines of a file must have: srun --label, MPICH, pdsh.
_COMMON_TAGS = {
    "number": re.compile(r" {0,5}(?P<rank>\d{1,6}): "),
    "bracket": re.compile(r"\[(?P<rank>\d{1,6})\] "),
    "host": re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,100}): "),
}
_NO_HOST = re.compile(
    r"(?i)(info|warn(ing)?|error|debug|fatal|critical|trace|epoch|step|iter|iteration|loss|note|eta)$"
)
#: kubectl --timestamps, mpirun --timestamp-output.
_STAMP = re.compile(
    r"(?:19|20)\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d) "
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d 20\d\d"
)
#: Inside a line: `[Rank 3]`, `[PG 0 Rank 3]`, `rank=3`, `(rank: 3)`.
_WITHIN = re.compile(r"(?i)\[(?:[^\]\n]{0,120}[ (])?rank[ :=]{1,3}(?P<rank>\d{1,6})\]")
_NCCL = re.compile(r"(?P<host>[A-Za-z0-9][\w.-]{0,100}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,4}\] ")
_POD_RANK = re.compile(r"(?:^|-)(?P<role>master|chief|worker|ps|pserver|server|trainer)-(?P<index>\d{1,6})(?:-|$)")
_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Tagging:
    """How the lines of one file are tagged: the common tag of most lines, or ''."""

    common: str = ""

    def split(self, line: str) -> tuple[LogProcess, str, str]:
        """Return the process that wrote the line, the process as NCCL names it (`host:pid`), and the line without its
        tags.
        """
        member, process = LogProcess(), ""
        for _ in range(5):
            stamp = _STAMP.match(line)
            start = stamp.end() if stamp else 0
            match = self._match(line, start)
            if match is None:
                break
            member = merge_members(member, _member(match))
            line = line[:start] + line[match.end() :]
        if (stamp := _STAMP.match(line)) is not None:
            line = line[stamp.end() :]
        if (nccl := _NCCL.search(line[:300])) is not None:
            member = merge_members(member, LogProcess(host=nccl["host"] if is_hostname(nccl["host"]) else ""))
            process = f"{nccl['host']}:{nccl['pid']}"
        if member.rank is None and (within := _WITHIN.search(line[:400])) is not None:
            member = replace(member, rank=int(within["rank"]))
        return member, process, line

    def _match(self, line: str, start: int) -> re.Match[str] | None:
        for tag in _TAGS:
            if (match := tag.match(line, start)) is not None:
                return match
        match = _COMMON_TAGS[self.common].match(line, start) if self.common else None
        if match is not None and self.common == "host" and _NO_HOST.match(match["host"]):
            return None
        return match


def common_tagging(sample: Sequence[str]) -> Tagging:
    """Return the common tag of a file from its first lines: a tag that four of five lines have."""
    lines = [line for line in sample[:_SAMPLE] if line.strip()]
    for name, tag in _COMMON_TAGS.items():
        heads = Counter(match[0] for line in lines if (match := tag.match(line)) is not None)
        if name == "host":
            for head in [head for head in heads if _NO_HOST.match(head[:-2])]:
                del heads[head]
        many = name != "host" or len(heads) <= max(1, len(lines) // 4)
        if lines and sum(heads.values()) >= 0.8 * len(lines) and len(lines) >= 4 and many:
            return Tagging(name)
    return Tagging()


def merge_members(member: LogProcess, other: LogProcess) -> LogProcess:
    """Combine two tags of a line; the first one wins where they differ."""
    return LogProcess(
        rank=member.rank if member.rank is not None else other.rank,
        local_rank=member.local_rank if member.local_rank is not None else other.local_rank,
        host=member.host or other.host,
        role=member.role or other.role,
    )


def _member(match: re.Match[str]) -> LogProcess:
    found = match.groupdict()
    if pod := found.get("pod"):
        return process_of_pod(pod)
    rank, local_rank = found.get("rank"), found.get("local_rank")
    role = found.get("role") or ""
    return LogProcess(
        rank=int(rank) if rank else None,
        local_rank=int(local_rank) if local_rank else None,
        host=found.get("host") or "",
        role="" if role == "default" else role,
    )


def process_of_pod(pod: str) -> LogProcess:
    """Return the process of a pod; the pod counts as a host, and operators number their workers."""
    match = _POD_RANK.search(pod)
    role = f"{match['role']} {match['index']}" if match else ""
    return LogProcess(host=pod, role=role)


#: Processes by the names of log files and their folders, nearest to the file first.
_FILES = tuple(
    re.compile(pattern)
    for pattern in (
        # torchrun --log-dir: attempt_0/3/stderr.log, one number a process of the node.
        r"attempt_\d{1,4}/(?P<local_rank>\d{1,4})/(?:stdout|stderr|error)[.\w]{0,20}$",
        # Paddle's launcher: workerlog.N, serverlog.N, trainerlog.N, coordinatorlog.N.
        r"(?:^|/)(?:[\w-]{1,80}\.)?(?P<paddle>worker|trainer|server|ps|heter_worker)log\.(?P<index>\d{1,5})$",
        # Open MPI and Horovod --output-filename: 1/rank.3/stderr.
        r"(?:^|/)rank\.(?P<rank>\d{1,6})/(?:stdout|stderr)$",
        r"(?:^|[/_.-])local_rank[_.-]?(?P<local_rank>\d{1,4})(?=[/_.-]|$)",
        r"(?:^|[/_.-])(?:global_)?rank[_.-]?(?P<rank>\d{1,6})(?=[/_.-]|$)",
        r"(?:^|[/_.-])(?P<role>pserver|server|ps|trainer|master|chief|worker)[_.-]?(?P<index>\d{1,5})(?=[/_.-]|$)",
        r"(?:^|[/_.-])task[_.-]?(?P<rank>\d{1,6})(?=[/_.-]|$)",
    )
)
_FILE_HOST = re.compile(
    r"(?:^|[/_.-])(?P<host>(?:node|host|gpu|compute|cn|dgx|nid|ip-|hgx|pod)[\w-]{0,60}?\d{1,5})(?=[/._]|$)"
)
#: Operators number workers without the master, so worker-2 may be rank 3.
_FILE_POD = re.compile(
    r"(?:^|/)(?P<pod>[a-z0-9][a-z0-9.-]{0,200}-(?:master|chief|worker|launcher|ps)-\d{1,5})(?=[/_.]|$)"
)
_LAST_NUMBER = re.compile(r"[._-](?P<rank>\d{1,5})(?:\.(?:log|out|err|txt|stdout|stderr))?$")


def member_of_file(path: str) -> LogProcess:
    """Return the process that a file belongs to, by its name and folders; empty if they do not show it."""
    plain = re.sub(r"\.(gz|[0-9]+\.gz)$", "", PurePath(path).as_posix())
    tail = "/".join(plain.split("/")[-6:])
    if (pod := _FILE_POD.search(tail)) is not None:
        return process_of_pod(pod["pod"])
    hosts = _FILE_HOST.findall(tail)
    host = hosts[-1] if hosts else ""
    for pattern in _FILES:
        matches = list(pattern.finditer(tail))
        if not matches:
            continue
        # A folder may be named for something else, as `lora_rank_8/rank_1.log`.
        found = matches[-1].groupdict()
        rank, local_rank, index = found.get("rank"), found.get("local_rank"), found.get("index")
        role = found.get("paddle") or found.get("role") or ""
        if role in ("worker", "trainer") and index is not None:
            # Collective ranks and trainers count alike; the lines of a worker identify it in a cluster with a master.
            return LogProcess(rank=int(index), host=host)
        return LogProcess(
            rank=int(rank) if rank else None,
            local_rank=int(local_rank) if local_rank else None,
            host=host,
            role=f"{_ROLES.get(role, role)} {index}" if index is not None else "",
        )
    return LogProcess(host=host)


_ROLES = {"ps": "server", "pserver": "server", "heter_worker": "heter worker"}


def ranks_by_number(paths: Sequence[str]) -> dict[str, LogProcess]:
    """Return the ranks of files in one folder whose names differ only in a final number, from 0 or 1 on."""
    groups: dict[str, dict[int, str]] = {}
    for path in paths:
        if (match := _LAST_NUMBER.search(path)) is not None and not member_of_file(path):
            groups.setdefault(path[: match.start()] + "*" + path[match.end("rank") :], {})[int(match["rank"])] = path
    found: dict[str, LogProcess] = {}
    for group in groups.values():
        if len(group) >= 2 and sorted(group) == list(range(len(group))):
            found.update({path: LogProcess(rank=number) for number, path in group.items()})
    return found
