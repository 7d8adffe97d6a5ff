"""Faults of virtual nodes, each a context manager that is undone at its end.

`with faults.drop_port(cluster.node("node3"), 29500): ...`
"""

from .base import FaultUnavailable
from .gpus import driver_version, gpu_config, gpu_lost, nvml_absent
from .links import (
    interface_mtu,
    link_down,
    mtu_black_hole,
    node_down,
    rename_interface,
    slow_link,
    unplugged,
)
from .packets import drop_between, drop_port, only_ports, packet_loss, reject_port
from .services import (
    clock_offset,
    hosts_entry,
    hosts_missing,
    login_noise,
    low_limits,
    port_in_use,
    sshd_frozen,
    sshd_stopped,
)
from .storage import file_content, full_disk, missing_file, small_shm

__all__ = [
    "FaultUnavailable",
    "clock_offset",
    "driver_version",
    "drop_between",
    "drop_port",
    "file_content",
    "full_disk",
    "gpu_config",
    "gpu_lost",
    "hosts_entry",
    "hosts_missing",
    "interface_mtu",
    "link_down",
    "login_noise",
    "low_limits",
    "missing_file",
    "mtu_black_hole",
    "node_down",
    "nvml_absent",
    "only_ports",
    "packet_loss",
    "port_in_use",
    "reject_port",
    "rename_interface",
    "slow_link",
    "small_shm",
    "sshd_frozen",
    "sshd_stopped",
    "unplugged",
]
