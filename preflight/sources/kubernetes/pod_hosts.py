"""The host names under which the pods of an object reach each other (`pod_hosts.toml`)."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from preflight._util import toml
from preflight.model.job import Known, Scope
from preflight.sources.formats.structured import Node, NodeClaims
from preflight.sources.kubernetes.objects import Workload


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
