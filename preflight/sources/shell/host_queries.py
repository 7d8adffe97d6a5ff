"""The output of commands such as `hostname`, `scontrol` and `getent`: the hosts and addresses of a job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from preflight.model.job.symbols import Symbol
from preflight.sources.shell.words import Field, reasons

_ADDRESS_FLAGS = frozenset(("-i", "-I", "--ip-address", "--all-ip-addresses"))
_RESOLVERS = frozenset(("getent", "host", "dig", "nslookup", "ping"))
_EXPANDERS = frozenset(("nodeset", "hostlist", "expand_hostlist", "python-hostlist"))
_INTERFACES = frozenset(("ip", "ifconfig"))
#: Programs whose output this module recognises.
HOST_PROGRAMS = frozenset(("hostname", "uname", "srun", "scontrol")) | _RESOLVERS | _EXPANDERS | _INTERFACES


def printed_symbol(name: str, arguments: Sequence[Field], *, batch: bool) -> Symbol | None:
    """The run-time value that one of `HOST_PROGRAMS` prints; None for anything not recognised.

    Args:
        name: the program.
        arguments: its words.
        batch: whether the command runs in a batch script outside srun, so on the first host of the allocation.
    """
    if name in ("hostname", "uname"):
        return _own_name(name, arguments, batch=batch)
    if name == "srun":
        return _srun_output(arguments)
    if name in _RESOLVERS:
        return _resolved_address(arguments)
    if name == "scontrol":
        expands = any(item.known in ("hostname", "hostnames") for item in arguments)
        return Symbol.ALLOCATED_HOSTS if expands else None
    if name in _EXPANDERS:
        return Symbol.ALLOCATED_HOSTS
    return Symbol.FIRST_ALLOCATED_ADDRESS if batch else Symbol.THIS_ADDRESS


def _own_name(name: str, arguments: Sequence[Field], *, batch: bool) -> Symbol | None:
    flags = {item.known for item in arguments}
    if name == "uname" and "-n" not in flags:
        return None
    address = bool(flags & _ADDRESS_FLAGS)
    if batch:
        return Symbol.FIRST_ALLOCATED_ADDRESS if address else Symbol.FIRST_ALLOCATED_HOST
    return Symbol.THIS_ADDRESS if address else Symbol.THIS_HOST


def _srun_output(arguments: Sequence[Field]) -> Symbol | None:
    """The output of `srun -N1 -n1 -w "$head" hostname --ip-address`: a host or its address."""
    at = next(
        (n for n, item in enumerate(arguments) if (item.known or "").rpartition("/")[2] == "hostname"),
        None,
    )
    options_text = " ".join(reasons(item.text) if item.known is None else item.known for item in arguments[:at])
    on_one_node = re.search(r"(^| )(-w|--nodelist|-N ?1\b|--nodes[= ]1\b|-n ?1\b|--ntasks[= ]1\b)", options_text)
    text = " ".join(item.known or "" for item in arguments)
    if at is None:
        if on_one_node and re.search(r"hostname -[iI]|ip (-|a|r)|ifconfig", text):
            return Symbol.FIRST_ALLOCATED_ADDRESS
        if on_one_node and re.search(r"\bhostname\b", text):
            return Symbol.FIRST_ALLOCATED_HOST
        return None
    address = any(item.known in _ADDRESS_FLAGS for item in arguments[at:])
    if Symbol.THIS_HOST.value in options_text:
        return Symbol.THIS_ADDRESS if address else Symbol.THIS_HOST
    if Symbol.OTHER_ALLOCATED_HOST.value in options_text:
        return Symbol.OTHER_ALLOCATED_HOST
    if on_one_node:
        return Symbol.FIRST_ALLOCATED_ADDRESS if address else Symbol.FIRST_ALLOCATED_HOST
    return Symbol.ALLOCATED_HOSTS


def _resolved_address(arguments: Sequence[Field]) -> Symbol | None:
    for item in arguments:
        why = reasons(item.text) if item.known is None else ""
        if why in (Symbol.FIRST_ALLOCATED_HOST.value, Symbol.FIRST_ALLOCATED_ADDRESS.value):
            return Symbol.FIRST_ALLOCATED_ADDRESS
        if why in (Symbol.THIS_HOST.value, Symbol.THIS_ADDRESS.value):
            return Symbol.THIS_ADDRESS
    return None
