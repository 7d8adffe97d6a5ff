"""Shows which network cards carried the bytes, by the kernel's counters of interfaces and RDMA ports before and after.

Interfaces are counted by psutil if the rank's Python has it, otherwise from /proc: both show those of this process's
own network namespace, where /sys may show the host's. RDMA bypasses the interfaces, so ports are counted separately:
`port_xmit_data` and `port_rcv_data` in units of four bytes (InfiniBand Architecture, PortCounters;
Documentation/ABI/stable/sysfs-class-infiniband), for cards without these (Amazon's EFA) `tx_bytes` and `rx_bytes`. A
hung card does not answer, so ports are read in a thread that can be abandoned.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Dict, List, Optional, Tuple

INTERFACES = "/proc/self/net/dev"
INFINIBAND = "/sys/class/infiniband"
#: Ports answer in milliseconds.
PORTS_S = 1.5
_WORD = 4


@dataclass(frozen=True)
class CardCounters:
    """Bytes sent and received, by interface (`eth0`) and by RDMA port (`mlx5_0:1`); in total, or in an interval.

    `problem` is why a counter could not be read.
    """

    interfaces: Dict[str, List[int]] = field(default_factory=dict)
    ports: Dict[str, List[int]] = field(default_factory=dict)
    problem: str = ""


def count(interfaces: str = INTERFACES, infiniband: str = INFINIBAND) -> CardCounters:
    """The current counters."""
    problems = []
    found = _by_psutil() if interfaces == INTERFACES else None
    if found is None:
        found = {}
        try:
            with open(interfaces) as file:
                found = parse_interfaces(file.read())
        except OSError as error:
            problems.append("%s: %s" % (interfaces, error.strerror))
    ports = {}  # type: Dict[str, List[int]]
    reader = threading.Thread(target=_read_ports, args=(infiniband, ports), daemon=True, name="preflight-ports")
    reader.start()
    reader.join(PORTS_S)
    if reader.is_alive():
        problems.append("an RDMA device did not answer within %g s" % PORTS_S)
    return CardCounters(found, dict(ports), "; ".join(problems))


def between(before: CardCounters, after: CardCounters) -> CardCounters:
    """The difference of two counts; counters that decreased (after a reset of the card) or are new are omitted."""
    problems = [text for text in dict.fromkeys((before.problem, after.problem)) if text]
    return CardCounters(
        _differences(before.interfaces, after.interfaces), _differences(before.ports, after.ports), "; ".join(problems)
    )


def _differences(before: Dict[str, List[int]], after: Dict[str, List[int]]) -> Dict[str, List[int]]:
    found = {}  # type: Dict[str, List[int]]
    for name, now in after.items():
        then = before.get(name)
        if then is not None and all(a >= b for a, b in zip(now, then)) and now != then:
            found[name] = [a - b for a, b in zip(now, then)]
    return found


def _by_psutil() -> Optional[Dict[str, List[int]]]:
    """Bytes sent and received by interface as counted by psutil; None if the rank's Python has no usable psutil."""
    try:
        import psutil

        # Without `nowrap`, which would hide that a counter decreased.
        counters = psutil.net_io_counters(pernic=True, nowrap=False)
    except Exception:  # A broken installation counts as none.
        return None
    return {name: [card.bytes_sent, card.bytes_recv] for name, card in counters.items()}


def parse_interfaces(text: str) -> Dict[str, List[int]]:
    """Bytes sent and received by interface, from /proc/net/dev: the first column is received, the ninth sent."""
    found = {}  # type: Dict[str, List[int]]
    for line in text.splitlines():
        name, colon, rest = line.rpartition(":")
        columns = rest.split()
        if colon and len(columns) >= 9 and columns[0].isdecimal() and columns[8].isdecimal():
            found[name.strip()] = [int(columns[8]), int(columns[0])]
    return found


def _read_ports(root: str, found: Dict[str, List[int]]) -> None:
    for device in _listed(root):
        for port in _listed(os.path.join(root, device, "ports")):
            counted = _port(os.path.join(root, device, "ports", port))
            if counted is not None:
                found["%s:%s" % (device, port)] = list(counted)


def _port(folder: str) -> Optional[Tuple[int, int]]:
    sent = _number(folder, "counters", "port_xmit_data")
    received = _number(folder, "counters", "port_rcv_data")
    if sent is not None and received is not None:
        return sent * _WORD, received * _WORD
    sent, received = _number(folder, "hw_counters", "tx_bytes"), _number(folder, "hw_counters", "rx_bytes")
    return (sent, received) if sent is not None and received is not None else None


def _number(*parts: str) -> Optional[int]:
    try:
        with open(os.path.join(*parts)) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def _listed(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []
