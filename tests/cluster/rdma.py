"""A simulated /sys/class/infiniband: devices in any state, for tests of probes and for virtual nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Hca", "files_of", "hcas", "roce_gids"]


@dataclass(frozen=True)
class Hca:
    """One device with one port; `gids` maps an index to GID, type and interface as the kernel writes them."""

    name: str
    state: str = "4: ACTIVE"
    physical: str = "5: LinkUp"
    rate: str = "200 Gb/sec (4X HDR)"
    link_layer: str = "InfiniBand"
    firmware: str = "28.39.1002"
    board: str = "MT_0000000838"
    gids: Mapping[int, tuple[str, str, str]] = field(default_factory=dict)
    counters: Mapping[str, int] = field(default_factory=dict)


def hcas(count: int, **different: str) -> list[Hca]:
    """mlx5_0 ... all alike."""
    return [Hca(f"mlx5_{index}", **different) for index in range(count)]  # type: ignore[arg-type]


def roce_gids(address: str, interface: str = "eth0") -> dict[int, tuple[str, str, str]]:
    """The table of an ordinary RoCE port: link-local and IPv4, each as version 1 and 2."""
    numbers = [int(part) for part in address.split(".")]
    mapped = f"0000:0000:0000:0000:0000:ffff:{numbers[0]:02x}{numbers[1]:02x}:{numbers[2]:02x}{numbers[3]:02x}"
    local = f"fe80:0000:0000:0000:0ac0:ebff:feda:{numbers[2]:02x}{numbers[3]:02x}"
    return {
        0: (local, "IB/RoCE v1", interface),
        1: (local, "RoCE v2", interface),
        2: (mapped, "IB/RoCE v1", interface),
        3: (mapped, "RoCE v2", interface),
    }


def files_of(devices: Sequence[Hca]) -> dict[str, str]:
    """The files of the tree, relative to /sys/class/infiniband, with their text."""
    files: dict[str, str] = {}
    for index, hca in enumerate(devices):
        port = f"{hca.name}/ports/1"
        files |= {
            f"{hca.name}/fw_ver": hca.firmware,
            f"{hca.name}/board_id": hca.board,
            f"{hca.name}/node_guid": f"0c42:a103:0000:{index:04x}",
            f"{port}/state": hca.state,
            f"{port}/phys_state": hca.physical,
            f"{port}/rate": hca.rate,
            f"{port}/link_layer": hca.link_layer,
        }
        table = {0: (f"fe80:0000:0000:0000:0c42:a103:0000:{index:04x}", "IB/RoCE v1", ""), **hca.gids}
        for place in range(8):
            gid, kind, interface = table.get(place, ("0000:" * 7 + "0000", "", ""))
            files[f"{port}/gids/{place}"] = gid
            if kind:
                files[f"{port}/gid_attrs/types/{place}"] = kind
                files[f"{port}/gid_attrs/ndevs/{place}"] = interface
        for name in ("link_downed", "symbol_error", "local_link_integrity_errors", "link_error_recovery"):
            files[f"{port}/counters/{name}"] = str(hca.counters.get(name, 0))
    return {name: f"{text}\n" for name, text in files.items()}
