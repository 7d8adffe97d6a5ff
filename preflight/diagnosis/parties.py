"""Who wrote a line: from the tags that launchers put in front of lines, and from the names of files."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePath

from preflight.diagnosis.model import Party
from preflight.job.hostname import is_hostname
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern

#: Tags that nothing else looks like, so that one of them is believed. A line may carry several.
_TAGS = tuple(
    lazy_pattern(tag)
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
#: Tags that other things look like, so that most lines of a file have to carry them: srun --label, MPICH, pdsh.
_COMMON_TAGS = {
    "number": lazy_pattern(r" {0,5}(?P<rank>\d{1,6}): "),
    "bracket": lazy_pattern(r"\[(?P<rank>\d{1,6})\] "),
    "host": lazy_pattern(r"(?P<host>[A-Za-z0-9][\w.-]{0,100}): "),
}
_NO_HOST = lazy_pattern(
    r"(?i)(info|warn(ing)?|error|debug|fatal|critical|trace|epoch|step|iter|iteration|loss|note|eta)$"
)
#: kubectl --timestamps, mpirun --timestamp-output.
_STAMP = lazy_pattern(
    r"(?:19|20)\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:?\d\d) "
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d 20\d\d"
)
#: Within a line: `[Rank 3]`, `[PG 0 Rank 3]`, `rank=3`, `(rank: 3)`.
_WITHIN = lazy_pattern(r"(?i)\[(?:[^\]\n]{0,120}[ (])?rank[ :=]{1,3}(?P<rank>\d{1,6})\]")
_NCCL = lazy_pattern(r"(?P<host>[A-Za-z0-9][\w.-]{0,100}):(?P<pid>\d{1,10}):\d{1,10} \[\d{1,4}\] ")
_POD_RANK = lazy_pattern(r"(?:^|-)(?P<role>master|chief|worker|ps|pserver|server|trainer)-(?P<index>\d{1,6})(?:-|$)")
_SAMPLE = 200


@dataclass(frozen=True, slots=True)
class Tagging:
    """How the lines of one file are tagged: the common tag that most of them carry, or ''."""

    common: str = ""

    def split(self, line: str) -> tuple[Party, str, str]:
        """Who wrote the line, the process as NCCL names it (`host:pid`), and the line without its tags."""
        party, process = Party(), ""
        for _ in range(5):
            stamp = _STAMP.match(line)
            start = stamp.end() if stamp else 0
            match = self._match(line, start)
            if match is None:
                break
            party = joined(party, _party(match))
            line = line[:start] + line[match.end() :]
        if (stamp := _STAMP.match(line)) is not None:
            line = line[stamp.end() :]
        if (nccl := _NCCL.search(line[:300])) is not None:
            party = joined(party, Party(host=nccl["host"] if is_hostname(nccl["host"]) else ""))
            process = f"{nccl['host']}:{nccl['pid']}"
        if party.rank is None and (within := _WITHIN.search(line[:400])) is not None:
            party = replace(party, rank=int(within["rank"]))
        return party, process, line

    def _match(self, line: str, start: int) -> re.Match[str] | None:
        for tag in _TAGS:
            if (match := tag.match(line, start)) is not None:
                return match
        match = _COMMON_TAGS[self.common].match(line, start) if self.common else None
        if match is not None and self.common == "host" and _NO_HOST.match(match["host"]):
            return None
        return match


def tagging_of(sample: Sequence[str]) -> Tagging:
    """The common tag of a file, from its first lines: the one that four of five carry."""
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


def joined(party: Party, other: Party) -> Party:
    """What both tags of a line say; the earlier one wins where they differ."""
    return Party(
        rank=party.rank if party.rank is not None else other.rank,
        local_rank=party.local_rank if party.local_rank is not None else other.local_rank,
        host=party.host or other.host,
        role=party.role or other.role,
    )


def _party(match: re.Match[str]) -> Party:
    found = match.groupdict()
    if pod := found.get("pod"):
        return pod_party(pod)
    rank, local_rank = found.get("rank"), found.get("local_rank")
    role = found.get("role") or ""
    return Party(
        rank=int(rank) if rank else None,
        local_rank=int(local_rank) if local_rank else None,
        host=found.get("host") or "",
        role="" if role == "default" else role,
    )


def pod_party(pod: str) -> Party:
    """A pod, as a host of its own; operators number their workers."""
    match = _POD_RANK.search(pod)
    role = f"{match['role']} {match['index']}" if match else ""
    return Party(host=pod, role=role)


#: What the names of log files and their folders say, nearest to the file first.
_FILES = tuple(
    lazy_pattern(pattern)
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
_FILE_HOST = lazy_pattern(
    r"(?:^|[/_.-])(?P<host>(?:node|host|gpu|compute|cn|dgx|nid|ip-|hgx|pod)[\w-]{0,60}?\d{1,5})(?=[/._]|$)"
)
#: Operators number workers without the master, so that worker-2 may well be rank 3.
_FILE_POD = lazy_pattern(
    r"(?:^|/)(?P<pod>[a-z0-9][a-z0-9.-]{0,200}-(?:master|chief|worker|launcher|ps)-\d{1,5})(?=[/_.]|$)"
)
_LAST_NUMBER = lazy_pattern(r"[._-](?P<rank>\d{1,5})(?:\.(?:log|out|err|txt|stdout|stderr))?$")


def party_of_file(path: str) -> Party:
    """Whom a file belongs to, by its name and folders; an empty party where they do not say."""
    plain = re.sub(r"\.(gz|[0-9]+\.gz)$", "", PurePath(path).as_posix())
    tail = "/".join(plain.split("/")[-6:])
    if (pod := _FILE_POD.search(tail)) is not None:
        return pod_party(pod["pod"])
    hosts = _FILE_HOST.findall(tail)
    host = hosts[-1] if hosts else ""
    for pattern in _FILES:
        match = pattern.search(tail)
        if match is None:
            continue
        found = match.groupdict()
        rank, local_rank, index = found.get("rank"), found.get("local_rank"), found.get("index")
        role = found.get("paddle") or found.get("role") or ""
        if role in ("worker", "trainer") and index is not None:
            # Collective ranks and trainers count alike; a worker of a cluster with a master is told by its own lines.
            return Party(rank=int(index), host=host)
        return Party(
            rank=int(rank) if rank else None,
            local_rank=int(local_rank) if local_rank else None,
            host=host,
            role=f"{_ROLES.get(role, role)} {index}" if index is not None else "",
        )
    return Party(host=host)


_ROLES = {"ps": "server", "pserver": "server", "heter_worker": "heter worker"}


def numbered(paths: Sequence[str]) -> dict[str, Party]:
    """Files of one folder that differ in one number at the end, from 0 or 1 on without a gap: that of the rank."""
    groups: dict[str, dict[int, str]] = {}
    for path in paths:
        if (match := _LAST_NUMBER.search(path)) is not None and not party_of_file(path):
            groups.setdefault(path[: match.start()] + "*" + path[match.end("rank") :], {})[int(match["rank"])] = path
    found: dict[str, Party] = {}
    for group in groups.values():
        if len(group) >= 2 and sorted(group) == list(range(len(group))):
            found.update({path: Party(rank=number) for number, path in group.items()})
    return found
