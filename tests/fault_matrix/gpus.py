"""GPUs that are missing, broken, slow, occupied or misconfigured, and drivers that fail, on one node of four."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from tests.cluster import Cluster, Node, faults
from tests.cluster.devices import Gpu, Gpus, NvmlError
from tests.cluster.faults.devices import ENVIRONMENT
from tests.end_to_end.head_command import JOB

from .fault import GPU_SCRIPT, Fault

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


def _fault(name: str, id: str, make: Make, *words: str, node: str = "node2", **more: Any) -> Fault:
    """A row about one node with GPUs."""
    given = {"job": GPU_JOB, "script": GPU_SCRIPT, "gpus": True, **more}
    return Fault(name, on_gpus(node, make), id, (node,), words=words, **given)


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
    _fault("gpu-fell-off-the-bus", "GPU011", lambda node: faults.gpu_lost(node, 1), "1 of the 2 GPUs", "GPU is lost"),
    _fault("gpu-wants-a-reset", "GPU011", _state(0, error=NvmlError.RESET_REQUIRED), "requires restart"),
    _fault("gpu-lost-half-way", "GPU011", _state(0, power_usage="error:15"), "1 of the 2 GPUs"),
    _fault("one-gpu-too-few", "GPU011", lambda node: faults.gpu_count(node, 1), "1 of the 2 GPUs", node="node4"),
    _fault("no-gpu-at-all", "GPU011", lambda node: faults.gpu_count(node, 0), "0 of the 2 GPUs"),
    _fault("driver-library-absent", "GPU011", faults.nvml_absent, "libnvidia-ml.so.1", node="node3"),
    _fault(
        "driver-module-not-loaded",
        "GPU011",
        lambda node: faults.nvml_error(node, NvmlError.DRIVER_NOT_LOADED),
        "has not loaded the driver's kernel module",
    ),
    _fault(
        "driver-library-of-another-version",
        "GPU011",
        lambda node: faults.nvml_error(node, NvmlError.LIB_RM_VERSION_MISMATCH),
        "whose version differs",
    ),
    _fault("driver-updated-underneath", "GPU011", _updated_underneath, "whose version differs", "535.104.05"),
    _fault(
        "driver-does-not-work",
        "GPU011",
        lambda node: faults.nvml_error(node, NvmlError.UNKNOWN),
        "Unknown Error",
    ),
    _fault(
        "driver-may-not-be-asked",
        "GPU011",
        lambda node: faults.nvml_error(node, NvmlError.NO_PERMISSION),
        "may not be used by this user",
        status="unknown",
    ),
    _fault(
        "one-gpu-may-not-be-asked",
        "GPU011",
        _state(1, name="error:4"),
        "1 of the 2 GPUs",
        "Insufficient Permissions",
    ),
    _fault(
        "another-model",
        "GPU012",
        lambda node: faults.gpu_config(node, V100S),
        "V100",
        severity="warning",
    ),
)

_HANGING = (
    # The hanging one is named by GPU024; that it cannot be counted makes the verdict incomplete.
    _fault(
        "gpu-hangs-in-its-driver",
        "GPU024",
        lambda node: faults.gpu_wedged(node, 1, "temperature"),
        "node2 GPU 1",
        "nvmlDeviceGetTemperature did not return",
        severity="warning",
        verdict="incomplete",
    ),
    _fault(
        "gpu-hangs-and-cannot-be-counted",
        "GPU011",
        lambda node: faults.gpu_wedged(node, 0, "name"),
        "nvmlDeviceGetName did not return",
        status="unknown",
    ),
    _fault(
        "driver-hangs",
        "GPU024",
        faults.nvml_wedged,
        "nvmlInit did not return",
        severity="warning",
        verdict="incomplete",
    ),
    _fault(
        "management-tool-hangs",
        "GPU024",
        lambda node: faults.management_tool(node, "sleep 60"),
        "no answer within 6 s",
        severity="warning",
    ),
    _fault(
        "management-tool-fails",
        "GPU024",
        lambda node: faults.management_tool(node, "echo 'NVIDIA-SMI has failed'; exit 9"),
        "NVIDIA-SMI has failed",
        severity="warning",
    ),
)

_BROKEN = (
    _fault(
        "uncorrectable-memory-error", "GPU013", _state(1, ecc_uncorrected=2), "node2 GPU 1", "0000:11:00.0", "has 2"
    ),
    _fault("row-remapping-failed", "GPU013", _state(0, remapped_failed=1), "node2 GPU 0", "could not replace"),
    _fault("driver-asks-for-a-reset", "GPU028", _state(1, recovery_action=1), "node2 GPU 1", "reset of the GPU"),
    _fault(
        "peers-may-not-read-each-other",
        "GPU027",
        _state(0, peer1=4),
        "GPU 0 and 1: no",
        severity="warning",
    ),
    _fault("row-remapping-pending", "GPU014", _state(0, remapped_pending=1), "node2 GPU 0", severity="warning"),
    _fault("page-retirement-pending", "GPU014", _state(1, retired_pages_pending=1), "node2 GPU 1", severity="warning"),
    _fault("many-retired-pages", "GPU014", _state(1, retired_pages=64), "has 64", severity="warning"),
    _fault("thermal-slowdown", "GPU015", _state(0, throttle_reasons=0x48, temperature=91), "91 °C"),
    _fault("hot-as-its-limit", "GPU015", _state(0, temperature=89), "limit is 89"),
    _fault("power-brake", "GPU015", _state(1, throttle_reasons=0x88, clock=345), "power brake", "345 of 1410 MHz"),
    _fault("driver-slows-for-heat", "GPU015", _state(1, throttle_reasons=0x20), "node2 GPU 1", severity="warning"),
    _fault("hardware-slowdown", "GPU015", _state(1, throttle_reasons=0x8), "node2 GPU 1", severity="warning"),
    _fault("few-pcie-lanes", "GPU016", _state(0, pcie_width=4), "4 of 16", severity="warning", node="node3"),
    _fault("slow-pcie-slot", "GPU016", _state(0, pcie_generation_max=3), "generation 3", severity="warning"),
    _fault(
        "memory-errors-may-not-be-read",
        "GPU013",
        _state(0, ecc_uncorrected="error:4", remapped_failed="error:4"),
        "GPU 0",
        "Insufficient Permissions",
        status="unknown",
        verdict="go",
    ),
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
    _fault("mig-enabled", "GPU018", _state(0, mig_mode=1, mig_mode_pending=1, mig_instances=7), "7 instances"),
    _fault("mig-enabled-at-the-next-reset", "GPU018", _state(0, mig_mode_pending=1), "next reset", severity="warning"),
    _fault("compute-mode-prohibited", "GPU019", _state(1, compute_mode=2), "node2 GPU 1", "prohibited"),
    _fault(
        "gpu-in-use",
        "GPU020",
        # Process 1 of the node is visible there.
        _state(0, process_pid=1, process_memory=60 * GIB, memory_used=61 * GIB),
        "node2 GPU 0",
        "60.0 GiB",
    ),
    _fault(
        "gpu-in-use-by-nobody-to-be-seen",
        "GPU020",
        _state(1, memory_used=61 * GIB),
        "61.0 of 80 GiB",
        severity="warning",
    ),
    _fault(
        "gpu-in-use-from-outside-the-container",
        "GPU020",
        _state(1, process_pid=4000000, process_memory=9 * GIB),
        "process 4000000",
        severity="warning",
    ),
    _fault("power-limit-lowered", "GPU021", _state(0, power_limit=250000), "has 250 W", severity="warning"),
    _fault("application-clock-lowered", "GPU021", _state(1, clock_application=900), "900 MHz", severity="warning"),
    _fault("ecc-off", "GPU021", _state(1, ecc_mode=0, ecc_mode_pending=0), "has off", severity="warning"),
    _fault("persistence-off", "GPU021", _state(1, persistence_mode=0), "persistence mode", severity="info"),
    _fault("another-vbios", "GPU021", lambda node: _every_vbios(node), "92.00.01", severity="info"),
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
    Fault(
        "nvlink-down",
        _linked(0, nvlink2=0),
        "GPU017",
        ("node2",),
        words=("node2 GPU 0", "3 of 4 up"),
        job=GPU_JOB,
        script=GPU_SCRIPT,
        gpus=True,
    ),
    Fault(
        "nvlink-recovers-again-and-again",
        _linked(1, nvlink3_recovery=17),
        "GPU017",
        ("node2",),
        severity="warning",
        words=("node2 GPU 1", "counts 17"),
        job=GPU_JOB,
        script=GPU_SCRIPT,
        gpus=True,
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
        "GPU022",
        _logged("NVRM: Xid (PCI:0000:11:00): 79, pid=99, GPU has fallen off the bus."),
        "Xid 79",
        "node2 GPU 1 (0000:11:00.0)",
    ),
    _fault(
        "nvlink-error-logged",
        "GPU022",
        _logged("NVRM: Xid (PCI:0000:10:00): 74, pid=99, NVLink: fatal error detected on link 2"),
        "Xid 74",
        severity="warning",
    ),
    _fault(
        "nvswitch-error-logged",
        "GPU022",
        _logged("nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
        "SXid 20034",
    ),
    _fault(
        "program-error-logged",
        "GPU022",
        _logged("NVRM: Xid (PCI:0000:10:00): 31, pid=99, name=python, Ch 0000000a, MMU Fault"),
        "Xid 31",
        severity="info",
    ),
    _fault("fabric-not-set-up", "GPU023", _state(1, fabric_state=2), "node2 GPU 1", "in progress"),
    _fault("fabric-set-up-failed", "GPU023", _state(1, fabric_state=3, fabric_status=999), "status 999"),
    _fault("fabric-manager-failed", "GPU023", _without_manager, "no running Fabric Manager"),
)

FAULTS = (*_TOLD, *_MISSING, *_HANGING, *_BROKEN, *_SET, *_LINKS)
