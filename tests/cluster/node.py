"""One virtual node: its names, addresses and sshd."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.waiting import until

from .files import sshd_config
from .namespace import ClusterError, Namespace

__all__ = ["Node", "Place", "Surroundings", "wait_until"]


@dataclass(frozen=True)
class Place:
    """The settings of a node before it exists."""

    name: str
    kind: str
    index: int
    data_address: str
    management_address: str

    @property
    def fabric_ports(self) -> dict[str, str]:
        """The other end, in the fabric, of each of the node's interfaces."""
        return {"eth0": f"data-{self.index}", "eth1": f"mgmt-{self.index}"}


@dataclass(frozen=True)
class Surroundings:
    """Shared data of the nodes of a cluster; `nodes` is filled while they start."""

    fabric: Namespace
    mtu: int
    nodes: dict[str, Node] = field(default_factory=dict)


class Node(Namespace):
    """A node, or the head: `run` and `popen` start commands on it directly, without ssh."""

    def __init__(self, pid: int, working_folder: str, place: Place, surroundings: Surroundings) -> None:
        super().__init__(pid, working_folder)
        self.place = place
        self._surroundings = surroundings

    @property
    def fabric(self) -> Namespace:
        """Where the bridges are, and the other end of every cable."""
        return self._surroundings.fabric

    @property
    def mtu(self) -> int:
        """The MTU of the cluster's interfaces without a fault."""
        return self._surroundings.mtu

    @property
    def peers(self) -> list[Node]:
        """All other nodes, and the head."""
        return [node for node in self._surroundings.nodes.values() if node is not self]

    @property
    def name(self) -> str:
        """The host name."""
        return self.place.name

    @property
    def data_address(self) -> str:
        """The address of `eth0`, on the data network."""
        return self.place.data_address

    @property
    def management_address(self) -> str:
        """The address of `eth1`, on the management network."""
        return self.place.management_address

    def read_text(self, inside: str) -> str:
        """The text of a file as the node sees it."""
        return self.path(inside).read_text(encoding="utf-8")

    def write_text(self, inside: str, text: str) -> None:
        """Write a file of the node's own (under /etc, /run, /tmp, /srv or its home), in place."""
        if not inside.startswith(("/etc/", "/run/", "/tmp/", "/srv/")):
            raise ValueError(f"{inside} is shared with the machine; use faults.file_content")
        self.path(inside).parent.mkdir(parents=True, exist_ok=True)
        self.path(inside).write_text(text, encoding="utf-8")

    def signal_sshd(self, signal_name: str) -> None:
        """Send a signal (`STOP`, `CONT`, `TERM`) to the listening sshd, not to its sessions."""
        self.must(["sh", "-c", f"kill -{signal_name} $(cat /run/sshd.pid)"])

    def stop_sshd(self) -> None:
        """Stop listening on port 22; sessions that are open stay open."""
        self.signal_sshd("TERM")
        wait_until(lambda: not self.path("/run/sshd.pid").exists(), 5, f"sshd on {self.name} to stop")

    def start_sshd(self, environment: Mapping[str, str] | None = None, *, lines: str = "") -> None:
        """Listen on port 22 again; `environment` is given to every session, `lines` end the configuration."""
        self.write_text("/etc/ssh/sshd_config", sshd_config(environment) + lines)
        self.must(["/usr/sbin/sshd", "-f", "/etc/ssh/sshd_config", "-E", "/run/sshd.log"])
        wait_until(lambda: self.path("/run/sshd.pid").exists(), 5, f"sshd on {self.name} to listen")


def wait_until(condition: Callable[[], bool], timeout_s: float, what: str) -> None:
    """Poll until `condition` holds; after `timeout_s` raise `ClusterError` with `what`."""
    try:
        until(condition, within_s=timeout_s)
    except TimeoutError:
        raise ClusterError(f"waited {timeout_s} s for {what}") from None
