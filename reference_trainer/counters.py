"""Which network cards carried the bytes: the kernel's counters of interfaces and RDMA ports, before and after.

Interfaces are read from /proc, which shows those of this process's own network namespace; /sys may show the host's.
RDMA passes the interfaces by, so ports are counted apart: `port_xmit_data` and `port_rcv_data` in units of four bytes
(InfiniBand Architecture, PortCounters; Documentation/ABI/stable/sysfs-class-infiniband), of cards that have none of
these (Amazon's EFA) `tx_bytes` and `rx_bytes`. A wedged card does not answer: ports are read in a thread that is left
behind.
"""

from __future__ import annotations

import os
import threading
from typing import Dict, List, Optional, Tuple

from preflight.node.record import dataclass, field

INTERFACES = "/proc/self/net/dev"
INFINIBAND = "/sys/class/infiniband"
#: Ports answer in milliseconds.
PORTS_S = 1.5
_WORD = 4


@dataclass(frozen=True)
class Counted:
    """Bytes sent and received, by interface (`eth0`) and by RDMA port (`mlx5_0:1`); of all time, or of a while.

    `problem` says why something could not be read.
    """

    interfaces: Dict[str, List[int]] = field(default_factory=dict)
    ports: Dict[str, List[int]] = field(default_factory=dict)
    problem: str = ""


def count(interfaces: str = INTERFACES, infiniband: str = INFINIBAND) -> Counted:
    """What the counters hold now."""
    problems = []
    found = {}  # type: Dict[str, List[int]]
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
    return Counted(found, dict(ports), "; ".join(problems))


def between(before: Counted, after: Counted) -> Counted:
    """What was counted meanwhile; counters that went back (a card that was reset) or came anew are left out."""
    problems = [text for text in dict.fromkeys((before.problem, after.problem)) if text]
    return Counted(_grown(before.interfaces, after.interfaces), _grown(before.ports, after.ports), "; ".join(problems))


def _grown(before: Dict[str, List[int]], after: Dict[str, List[int]]) -> Dict[str, List[int]]:
    found = {}  # type: Dict[str, List[int]]
    for name, now in after.items():
        then = before.get(name)
        if then is not None and all(a >= b for a, b in zip(now, then)) and now != then:
            found[name] = [a - b for a, b in zip(now, then)]
    return found


def parse_interfaces(text: str) -> Dict[str, List[int]]:
    """Bytes sent and received by interface, of /proc/net/dev: the 1st column holds those received, the 9th sent."""
    found = {}  # type: Dict[str, List[int]]
    for line in text.splitlines():
        name, colon, rest = line.rpartition(":")
        columns = rest.split()
        if colon and len(columns) >= 9 and columns[0].isdigit() and columns[8].isdigit():
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
