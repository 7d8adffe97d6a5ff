"""GPUs that are missing, broken, slow, occupied or misconfigured, and drivers that fail, on one node of four."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from tests.cluster import Cluster, Node, faults
from tests.cluster.devices import Gpu, Gpus, NvmlError
from tests.cluster.faults.devices import ENVIRONMENT
from tests.end_to_end.head_command import JOB

from .fault import GPU_SCRIPT, Fault, fault

__all__ = ["FAULTS", "GPU_JOB", "on_gpus"]

#: Two ranks on each node, one for each stub GPU, with the stub torch of the nodes.
GPU_JOB = JOB.replace(
    "export GLOO_SOCKET_IFNAME=eth0\n", f"export NCCL_SOCKET_IFNAME=eth0 PYTHONPATH={ENVIRONMENT}\n"
).replace("--nproc_per_node=1", "--nproc_per_node=2")

GIB = 2**30
V100S = Gpus((Gpu("Tesla V100-SXM2-32GB", 32 * GIB, compute_capability="7.0"),) * 2)
Make = Callable[[Node], AbstractContextManager[object]]


def on_gpus(node: str, make: Make) -> Callable[[Cluster], AbstractContextManager[object]]:
    """The fault `make` on one node, while all nodes have the same torch."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        with faults.installed(cluster.nodes, faults.Torch()), make(cluster.node(node)):
            yield

    return inject


def _state(index: int, **state: int | str) -> Make:
    return lambda node: faults.gpu_state(node, index, **state)


def _fault(name: str, make: Make, *, node: str = "node2", **job: Any) -> Fault:
    """A row about one node with GPUs."""
    return fault(name, on_gpus(node, make), **{"job": GPU_JOB, "script": GPU_SCRIPT, "gpus": True, **job})


@contextmanager
def _updated_underneath(node: Node) -> Iterator[None]:
    """The driver's package was updated while its old module stays loaded."""
    loaded = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n"
    with (
        faults.driver_files(node, {"nvidia/version": loaded}),
        faults.nvml_error(node, NvmlError.LIB_RM_VERSION_MISMATCH),
    ):
        yield


_MISSING = (
    _fault("gpu-fell-off-the-bus", lambda node: faults.gpu_lost(node, 1)),
    _fault("gpu-wants-a-reset", _state(0, error=NvmlError.RESET_REQUIRED)),
    _fault("gpu-lost-half-way", _state(0, power_usage="error:15")),
    _fault("one-gpu-too-few", lambda node: faults.gpu_count(node, 1), node="node4"),
    _fault("no-gpu-at-all", lambda node: faults.gpu_count(node, 0)),
    _fault("driver-library-absent", faults.nvml_absent, node="node3"),
    _fault("driver-module-not-loaded", lambda node: faults.nvml_error(node, NvmlError.DRIVER_NOT_LOADED)),
    _fault(
        "driver-library-of-another-version", lambda node: faults.nvml_error(node, NvmlError.LIB_RM_VERSION_MISMATCH)
    ),
    _fault("driver-updated-underneath", _updated_underneath),
    _fault("driver-does-not-work", lambda node: faults.nvml_error(node, NvmlError.UNKNOWN)),
    _fault("driver-may-not-be-asked", lambda node: faults.nvml_error(node, NvmlError.NO_PERMISSION)),
    _fault("one-gpu-may-not-be-asked", _state(1, name="error:4")),
    _fault("another-model", lambda node: faults.gpu_config(node, V100S)),
)

_HANGING = (
    _fault("gpu-hangs-in-its-driver", lambda node: faults.gpu_wedged(node, 1, "temperature")),
    _fault("gpu-hangs-and-cannot-be-counted", lambda node: faults.gpu_wedged(node, 0, "name")),
    _fault("driver-hangs", faults.nvml_wedged),
    _fault("management-tool-hangs", lambda node: faults.management_tool(node, "sleep 60")),
    _fault("management-tool-fails", lambda node: faults.management_tool(node, "echo 'NVIDIA-SMI has failed'; exit 9")),
)

_BROKEN = (
    _fault("uncorrectable-memory-error", _state(1, ecc_uncorrected=2)),
    _fault("row-remapping-failed", _state(0, remapped_failed=1)),
    _fault("driver-asks-for-a-reset", _state(1, recovery_action=1)),
    _fault("peers-may-not-read-each-other", _state(0, peer1=4)),
    _fault("row-remapping-pending", _state(0, remapped_pending=1)),
    _fault("page-retirement-pending", _state(1, retired_pages_pending=1)),
    _fault("many-retired-pages", _state(1, retired_pages=64)),
    _fault("thermal-slowdown", _state(0, throttle_reasons=0x48, temperature=91)),
    _fault("hot-as-its-limit", _state(0, temperature=89)),
    _fault("power-brake", _state(1, throttle_reasons=0x88, clock=345)),
    _fault("driver-slows-for-heat", _state(1, throttle_reasons=0x20)),
    _fault("hardware-slowdown", _state(1, throttle_reasons=0x8)),
    _fault("few-pcie-lanes", _state(0, pcie_width=4), node="node3"),
    _fault("slow-pcie-slot", _state(0, pcie_generation_max=3)),
    _fault("memory-errors-may-not-be-read", _state(0, ecc_uncorrected="error:4", remapped_failed="error:4")),
)


def _linked(index: int, **state: int | str) -> Callable[[Cluster], AbstractContextManager[object]]:
    """Every GPU of every node has four NVLinks up, except for `state` on one."""

    @contextmanager
    def inject(cluster: Cluster) -> Iterator[None]:
        up = {f"nvlink{link}": 1 for link in range(4)}
        with ExitStack() as stack:
            stack.enter_context(faults.installed(cluster.nodes, faults.Torch()))
            for node in cluster.nodes:
                for device in range(2):
                    stack.enter_context(faults.gpu_state(node, device, **up))
            stack.enter_context(faults.gpu_state(cluster.node("node2"), index, **state))
            yield

    return inject


_SET = (
    _fault("mig-enabled", _state(0, mig_mode=1, mig_mode_pending=1, mig_instances=7)),
    _fault("mig-enabled-at-the-next-reset", _state(0, mig_mode_pending=1)),
    _fault("compute-mode-prohibited", _state(1, compute_mode=2)),
    # Process 1 of the node is visible there.
    _fault("gpu-in-use", _state(0, process_pid=1, process_memory=60 * GIB, memory_used=61 * GIB)),
    _fault("gpu-in-use-by-nobody-to-be-seen", _state(1, memory_used=61 * GIB)),
    _fault("gpu-in-use-from-outside-the-container", _state(1, process_pid=4000000, process_memory=9 * GIB)),
    _fault("power-limit-lowered", _state(0, power_limit=250000)),
    _fault("application-clock-lowered", _state(1, clock_application=900)),
    _fault("ecc-off", _state(1, ecc_mode=0, ecc_mode_pending=0)),
    _fault("persistence-off", _state(1, persistence_mode=0)),
    _fault("another-vbios", lambda node: _every_vbios(node)),
)


@contextmanager
def _every_vbios(node: Node) -> Iterator[None]:
    """Each GPU reports its VBIOS, and one of this node has another."""
    with ExitStack() as stack:
        for one in (*node.peers, node):
            if one.place.kind == "node":
                for device in range(2):
                    stack.enter_context(faults.gpu_state(one, device, vbios="92.00.00"))
        stack.enter_context(faults.gpu_state(node, 1, vbios="92.00.01"))
        yield


_LINKS = (
    fault("nvlink-down", _linked(0, nvlink2=0), job=GPU_JOB, script=GPU_SCRIPT, gpus=True),
    fault(
        "nvlink-recovers-again-and-again", _linked(1, nvlink3_recovery=17), job=GPU_JOB, script=GPU_SCRIPT, gpus=True
    ),
)


def _logged(message: str) -> Make:
    """The node's journal holds this message of the kernel, a minute old."""
    text = f'echo "$(($(date +%s) - 60)).0 node kernel: {message}"'
    return lambda node: faults.management_tool(node, text, name="journalctl")


@contextmanager
def _without_manager(node: Node) -> Iterator[None]:
    """The node has NVSwitches, and systemd reports that their Fabric Manager has failed."""
    switches = {f"nvidia-nvswitch/devices/0000:c{number}:00.0/information": "" for number in range(6)}
    with (
        faults.driver_files(node, switches),
        faults.management_tool(node, "echo failed; exit 3", name="systemctl"),
    ):
        yield


_TOLD = (
    _fault(
        "gpu-fell-off-the-bus-a-minute-ago",
        _logged("NVRM: Xid (PCI:0000:11:00): 79, pid=99, GPU has fallen off the bus."),
    ),
    _fault(
        "nvlink-error-logged", _logged("NVRM: Xid (PCI:0000:10:00): 74, pid=99, NVLink: fatal error detected on link 2")
    ),
    _fault(
        "nvswitch-error-logged",
        _logged("nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
    ),
    _fault(
        "program-error-logged", _logged("NVRM: Xid (PCI:0000:10:00): 31, pid=99, name=python, Ch 0000000a, MMU Fault")
    ),
    _fault("fabric-not-set-up", _state(1, fabric_state=2)),
    _fault("fabric-set-up-failed", _state(1, fabric_state=3, fabric_status=999)),
    _fault("fabric-manager-failed", _without_manager),
)

FAULTS = (*_TOLD, *_MISSING, *_HANGING, *_BROKEN, *_SET, *_LINKS)
