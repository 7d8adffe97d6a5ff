"""The hosts on which the processes of a launch run, with the slots that options select on each."""

from __future__ import annotations

from collections.abc import Iterable

from preflight.model.job.job import Job, Launch
from preflight.model.job.value import Known, Value


def host_slots(job: Job, launch: Launch) -> dict[str, int]:
    """The slots of each host, in the order of the list; empty unless every host has its own number."""
    value = job.value("hosts", launch.scope)
    by_host = _by_host(job, launch)
    hosts = _names(value)
    return {host: by_host[host] for host in hosts} if hosts and by_host.keys() >= set(hosts) else {}


def deepspeed_slots(job: Job, launch: Launch) -> dict[str, tuple[int, ...]]:
    """The slots that DeepSpeed uses on each host of its hostfile; empty if any of them is unknown.

    The rules are DeepSpeed's (deepspeed/launcher/runner.py): hosts keep the order of the hostfile; `--include` and
    `--exclude` name hosts or slots of them; `--num_nodes` selects the first hosts, `--num_gpus` the first slots of
    each.
    """
    if launch.launcher != "deepspeed":
        return {}
    listed = next((claim for claim in job.about("hosts", launch.scope) if claim.source == "hostfile"), None)
    by_host = _by_host(job, launch)
    hosts = _names(listed.value) if listed is not None else ()
    if not hosts or not by_host.keys() >= set(hosts) or _is_any_listed_twice(job, hosts):
        return {}
    slots = {host: tuple(range(by_host[host])) for host in hosts}
    for quantity in ("included_slots", "excluded_slots"):
        if not job.value_claims(quantity, launch.scope):
            continue
        named = _entries(_names(job.value(quantity, launch.scope)))
        if not named or not named.keys() <= slots.keys():
            return {}
        if quantity == "included_slots":
            slots = {host: tuple(named[host] or slots[host]) for host in slots if host in named}
        else:
            slots = {
                host: tuple(slot for slot in own if host not in named or (named[host] and slot not in named[host]))
                for host, own in slots.items()
            }
    slots = {host: own for host, own in slots.items() if own}
    if job.value_claims("included_slots", launch.scope) or job.value_claims("excluded_slots", launch.scope):
        # The launcher rejects counts together with these options.
        return slots
    for quantity in ("nodes", "processes_per_node"):
        for claim in [one for one in job.about(quantity, launch.scope) if one.source == "deepspeed"][:1]:
            count = claim.value.value if isinstance(claim.value, Known) else None
            if not isinstance(count, int):
                return {}
            slots = (
                dict(list(slots.items())[:count])
                if quantity == "nodes"
                else {host: tuple(range(count)) for host in slots}
            )
    return slots


def _by_host(job: Job, launch: Launch) -> dict[str, int]:
    return {
        claim.scope.node: claim.value.value
        for claim in job.about("host_slots")
        if claim.scope.node
        and claim.scope.launch in ("", launch.id)
        and isinstance(claim.value, Known)
        and isinstance(claim.value.value, int)
    }


def _is_any_listed_twice(job: Job, hosts: tuple[str, ...]) -> bool:
    """Whether the hostfile names a host twice, which DeepSpeed rejects."""
    entries = [claim.scope.node for claim in job.about("host_slots") if claim.source == "hostfile"]
    return any(entries.count(host) > 1 for host in hosts) or len(set(hosts)) < len(hosts)


def _names(value: Value) -> tuple[str, ...]:
    return tuple(map(str, value.value)) if isinstance(value, Known) and isinstance(value.value, tuple) else ()


def _entries(entries: Iterable[str]) -> dict[str, list[int]]:
    """Hosts with their slots, from `node1:0,2`; an empty list means all slots. Empty for any other string."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        host, _, listed = entry.partition(":")
        numbers = [part.strip() for part in listed.split(",") if part.strip()]
        if not all(number.isdecimal() for number in numbers):
            return {}
        found[host] = list(dict.fromkeys(map(int, numbers)))
    return found
