"""RDMA devices as the kernel shows them below /sys/class/infiniband: ports, rates, GIDs, counters, firmware.

The state of a port comes from the card's firmware, and a wedged card does not answer: each device is read in a thread
of its own, and a late one is recorded as such while the others are not affected.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from preflight.agent.process import list_folder, read_number, read_text
from preflight.agent.wire import ProbeUnavailable

INFINIBAND = "/sys/class/infiniband"
#: A healthy device is read in milliseconds, its table of GIDs included.
DEVICE_S = 3.5
#: Tables have up to 256 entries, nearly all empty.
MAX_GIDS = 256
_COUNTERS = (
    "link_downed",
    "symbol_error",
    "local_link_integrity_errors",
    "link_error_recovery",
    "port_rcv_errors",
    "excessive_buffer_overrun_errors",
)
_NO_GUID = "0000:0000:0000:0000:0000:0000:0000:0000"


@dataclass(frozen=True)
class Gid:
    """One entry of a port's table. `version` is 1 or 2 for RoCE, 0 for InfiniBand or if unknown."""

    index: int
    gid: str
    version: int = 0
    interface: str = ""


@dataclass(frozen=True)
class RdmaPort:
    """One port. `state` is `ACTIVE`, `DOWN`, ...; `physical` `LinkUp`, `Polling`, `Disabled`, ...

    `gids` omits empty entries. `counters` are those of the port since the driver was loaded.
    """

    number: int
    state: str = ""
    physical: str = ""
    rate_gbps: float | None = None
    rate_text: str = ""
    link_layer: str = ""
    gids: list[Gid] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)

    @property
    def active(self) -> bool:
        """Whether the port can carry data."""
        return self.state == "ACTIVE"


@dataclass(frozen=True)
class RdmaDevice:
    """One device (HCA). `problem` is why nothing more is known about it."""

    name: str
    driver: str = ""
    firmware: str = ""
    board: str = ""
    pci: str = ""
    ports: list[RdmaPort] = field(default_factory=list)
    problem: str = ""


@dataclass(frozen=True)
class RdmaDevices:
    """All devices by name; none if the kernel has no RDMA at all."""

    devices: list[RdmaDevice]


def rdma(params: dict[str, Any]) -> RdmaDevices:
    """The RDMA devices of this node. Raises ProbeUnavailable if the folder may not be read."""
    try:
        names = sorted(os.listdir(INFINIBAND), key=_by_number)
    except FileNotFoundError:
        return RdmaDevices([])
    except OSError as error:
        raise ProbeUnavailable("denied", f"{INFINIBAND} cannot be listed: {error.strerror}") from None
    found: dict[str, RdmaDevice] = {}
    threads = [threading.Thread(target=_read_device, args=(name, found), daemon=True) for name in names]
    for thread in threads:
        thread.start()
    ends = time.monotonic() + float(params.get("device_s", DEVICE_S))
    for thread in threads:
        thread.join(max(0.0, ends - time.monotonic()))
    late = "its driver did not answer within {:g} s".format(float(params.get("device_s", DEVICE_S)))
    return RdmaDevices([found.get(name) or RdmaDevice(name, problem=late) for name in names])


def _by_number(name: str) -> Any:
    """mlx5_2 before mlx5_10."""
    head = name.rstrip("0123456789")
    return head, int(name[len(head) :] or -1), name


def _read_device(name: str, found: dict[str, RdmaDevice]) -> None:
    found[name] = _device(name)


def _device(name: str) -> RdmaDevice:
    folder = os.path.join(INFINIBAND, name)
    try:
        numbers = sorted(int(port) for port in os.listdir(os.path.join(folder, "ports")) if port.isdecimal())
    except OSError as error:
        return RdmaDevice(name, problem=f"its ports cannot be listed: {error.strerror}")
    return RdmaDevice(
        name,
        _link_target(os.path.join(folder, "device", "driver")),
        read_text(os.path.join(folder, "fw_ver")),
        read_text(os.path.join(folder, "board_id")) or read_text(os.path.join(folder, "hca_type")),
        _link_target(os.path.join(folder, "device")),
        [_port(os.path.join(folder, "ports", str(number)), number) for number in numbers],
    )


def _link_target(link: str) -> str:
    """The name of a link's target; empty if there is none."""
    return os.path.basename(os.path.realpath(link)) if os.path.exists(link) else ""


def _port(folder: str, number: int) -> RdmaPort:
    rate = read_text(os.path.join(folder, "rate"))
    counts = {name: read_number(os.path.join(folder, "counters", name)) for name in _COUNTERS}
    counters = {name: count for name, count in counts.items() if count is not None}
    return RdmaPort(
        number,
        after_number(read_text(os.path.join(folder, "state"))),
        after_number(read_text(os.path.join(folder, "phys_state"))),
        parse_rate(rate),
        rate,
        read_text(os.path.join(folder, "link_layer")),
        _gids(folder),
        counters,
    )


def _gids(folder: str) -> list[Gid]:
    places = sorted(int(name) for name in list_folder(os.path.join(folder, "gids")) if name.isdecimal())
    found: list[Gid] = []
    for index in places[:MAX_GIDS]:
        gid = read_text(os.path.join(folder, "gids", str(index)))
        if gid in ("", _NO_GUID):
            continue
        # "RoCE v2"; "IB/RoCE v1" means InfiniBand and also version 1 (kernel, ib_cache).
        kind = read_text(os.path.join(folder, "gid_attrs", "types", str(index)))
        version = 2 if kind.endswith("v2") else 1 if kind.endswith("v1") else 0
        found.append(Gid(index, gid, version, read_text(os.path.join(folder, "gid_attrs", "ndevs", str(index)))))
    return found


def after_number(text: str) -> str:
    """`ACTIVE` of `4: ACTIVE`."""
    return text.split(":", 1)[-1].strip()


def parse_rate(text: str) -> float | None:
    """200.0 from `200 Gb/sec (4X HDR)`; None if it is not a rate."""
    words = text.split()
    try:
        return float(words[0]) if len(words) > 1 and words[1].startswith("Gb/s") else None
    except ValueError:
        return None
