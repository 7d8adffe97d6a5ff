"""The host names under which the pods of an object reach each other (`pod_hosts.toml`).

Those of a Volcano job come from its plugin `svc` alone. Source: pkg/controllers/job/plugins/svc/svc.go of Volcano 1.12:
the files below /etc/volcano, VC_TASK_HOSTS, VC_TASK_NUM and the domain of the pods.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from preflight._util import toml
from preflight._util.spans import Places, span_of
from preflight.model.job import Claim, Known, Scope, Strength, Unresolved, Value
from preflight.sources.base import Command, SourceFile, Tree
from preflight.sources.formats.structured import Kind, Node, NodeClaims
from preflight.sources.kubernetes.container_commands import Mounted
from preflight.sources.kubernetes.objects import Role, Workload


class _Row(NamedTuple):
    """A row of `pod_hosts.toml`, whose head describes the fields."""

    kinds: tuple[str, ...]
    hosts: tuple[str, ...]
    groups: tuple[str, ...] = ()
    domain: str = ""
    domain_at: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


@functools.cache
def _rows() -> tuple[_Row, ...]:
    return tuple(_Row(**toml.with_tuples(row)) for row in toml.load(Path(__file__).with_suffix(".toml"))["pods"])


#: Fields with which pods have other names, or find each other in another way.
_OWN_NAMES = ("dnsConfig", "hostAliases", "hostNetwork", "hostname")


def state_hosts(node_claims: NodeClaims, workload: Workload, everything: Sequence[Node], scope: Scope) -> None:
    """State the names of the pods, with `{i}` for a number, and those of the services in the same files.

    Nothing is stated of an object whose name, domain or roles are not known.
    """
    hosts = tuple(dict.fromkeys(_hosts(workload)))
    if hosts and all("{{" not in host and "$" not in host for host in hosts):
        services = [item.text("metadata", "name") for item in everything if item.text("kind") == "Service"]
        node_claims.add("pod_hosts", Known((*hosts, *(name for name in services if name))), workload.head, scope=scope)


def _hosts(workload: Workload) -> Iterator[str]:
    job = workload.root.text("metadata", "name")
    pods = [role.pod for role in workload.roles if role.pod is not None]
    if any(pod.member(key) is not None for pod in pods for key in _OWN_NAMES):
        return
    if (
        workload.spec.at("plugins", "ssh") is not None
        or workload.spec.at("networkConfig", "subdomainPolicy") is not None
    ):
        # Short names and other subdomains work as well.
        return
    row = next((r for r in _rows() if workload.kind in r.kinds and (not r.groups or workload.group in r.groups)), None)
    if not job or row is None or (row.needs and workload.spec.at(*row.needs) is None):
        return
    domain = (workload.spec.text(*row.domain_at) if row.domain_at else "") or row.domain.format(job=job)
    if row.domain_at and not domain:
        return
    for role in workload.roles:
        for host in row.hosts:
            name = host.format(job=job, role=role.name.lower(), i="{i}")
            own = role.pod.text("subdomain") if role.pod is not None else ""
            yield f"{name}.{own or domain}" if domain else name


_LOOKS = r"/etc/volcano/[\w.${}-]+|\bVC_\w+_(?:HOSTS|NUM)\b"
#: What provides an address in another way, or asks first whether there is one.
_PROVIDED = re.compile(
    r"mountPath: *[\"']?/etc/volcano|name: *[\"']?VC_\w+_(?:HOSTS|NUM)|\bVC_\w+=|VC_\w+_(?:HOSTS|NUM):?[-+?=]"
    r"|(?:\btest|\[|\bif) .*(?:/etc/volcano|VC_\w+_)|\bexists\(|\bis_?file\(|\.get\(|getenv\(|\btry:|\bin os\.environ"
)
#: Blocks of a shell script that may not be run.
_OPENS = re.compile(r"(?:^|[;&|])\s*(?:if|case|while|until)\b|\w+\s*\(\)\s*\{", re.MULTILINE)
_CLOSES = re.compile(r"(?:^|[;\s])(?:fi|esac|done)\b|^\s*\}", re.MULTILINE)


class Piece(NamedTuple):
    """A part of a file that the pods hold or run."""

    file: SourceFile
    start: int
    end: int


def pieces_of(
    file: SourceFile,
    tree: Tree,
    role: Role,
    mounted: Mapping[str, Mounted],
    commands: Sequence[Command],
    programs: Iterable[str],
) -> Iterator[Piece]:
    """The pod template of a role, and the scripts and programs that its container runs."""
    yield Piece(file, role.template.start, role.template.end)
    places = Places(file.path, file.text)
    lines = {command.span.line for command in commands if command.span.path == file.path}
    for node in (item.node for item in mounted.values()):
        if lines & set(range(places.line(node.start), places.line(node.end) + 1)):
            yield Piece(file, node.start, node.end)
    for path in sorted({command.span.path for command in commands} - {file.path} | set(programs)):
        read = tree.read(path)
        if isinstance(read, SourceFile):
            yield Piece(read, 0, len(read.text))


def is_volcano_job(workload: Workload) -> bool:
    """Whether an object is a job of Volcano, whose plugins connect its pods."""
    return workload.group == "batch.volcano.sh" and workload.kind == "Job"


def state_volcano_hosts(
    stating: NodeClaims, workload: Workload, pieces: Iterable[Piece], everything: Sequence[Node], scope: Scope
) -> None:
    """State the plugins of a job of Volcano, and the first place that looks for an address; nothing without one."""
    services = {item.text("metadata", "name") for item in everything if item.text("kind") == "Service"}
    found = [claim for piece in pieces for claim in _looks(workload, piece, services)]
    for claim in sorted(found, key=lambda claim: bool(claim.condition))[:1]:
        stating.claims.append(replace(claim, scope=scope))
        stating.add("volcano_plugins", _plugins(workload), workload.plugins or workload.head, scope=scope)


def _looks(workload: Workload, piece: Piece, services: set[str]) -> Iterator[Claim]:
    text = piece.file.text[piece.start : piece.end]
    if _PROVIDED.search(text) is not None:
        return
    job, wanted = workload.root.text("metadata", "name"), _LOOKS
    own = any(role.pod is not None and role.pod.member("subdomain") is not None for role in workload.roles)
    if job and job not in services and not own:
        tasks = "|".join(re.escape(role.name) for role in workload.roles)
        wanted += rf"|\b{re.escape(job)}-(?:{tasks})-\d+\.{re.escape(job)}\b(?!-)"
    for match in re.finditer(wanted, text):
        before = text[: match.start()]
        if "#" in before.rpartition("\n")[2]:
            continue
        certain = not piece.file.path.endswith(".py") and len(_OPENS.findall(before)) <= len(_CLOSES.findall(before))
        span = span_of(piece.file.path, piece.file.text, piece.start + match.start(), piece.start + match.end())
        condition = "" if certain else "where it comes to this line"
        yield Claim(
            "pod_address",
            Known(match[0]),
            span,
            match[0],
            "kubernetes",
            strength=Strength.SCHEDULER,
            condition=condition,
        )
        return


def _plugins(workload: Workload) -> Value:
    if workload.plugins is None:
        return Known(())
    node = workload.plugins.node
    if node.kind is not Kind.OBJECT or any("{{" in member.key or "$" in member.key for member in node.in_force):
        return Unresolved("a placeholder that is replaced later")
    return Known(tuple(member.key for member in node.in_force))
