"""Checks that the NVSwitch fabric is set up; without it no CUDA program starts on its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.gpus.device_findings import all_devices
from preflight_checks.gpus.presence import plan_gpus
from preflight_checks.planning import combined, on_every_node
from preflight_checks.probes.fabric import Fabric, fabric
from preflight_checks.probes.gpus import gpus
from preflight_checks.requirements.backends import gpu_claims
from preflight_checks.requirements.hosts import fold

#: nvml.h, NVML_GPU_FABRIC_STATE_*: 0 is "not supported".
STATES = {1: "not started", 2: "in progress", 3: "completed"}
_COMPLETED = 3


@check(
    "GPU023",
    "gpu-fabric-not-ready",
    plan=combined(plan_gpus, on_every_node(fabric, needed_by=gpu_claims, deadline_s=5.0)),
    probes=(gpus, fabric),
    cost="looks for NVSwitches in /proc and /sys and, if there are any, for the Fabric Manager and its version",
    severity=Severity.ERROR,
    evidence=(
        "pytorch/pytorch#35710",
        "dstackai/dstack#2348",
        "nanoporetech/dorado#1214",
        "hiyouga/LLaMA-Factory#8968",
        (
            "NVIDIA's Fabric Manager user guide",
            "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/index.html",
        ),
    ),
)
def gpu_fabric_not_ready(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On nodes with NVSwitches the Fabric Manager runs, matches the driver's version, and has set up every GPU.

    What it checks: NVML's fabric state of each GPU where it has one (H100 and later); else whether the Fabric
    Manager's process or service exists; in both cases, whether its version is the driver's.

    Why it matters: without it every CUDA program on the node ends with error 802, "system not yet initialized".

    Example: the driver of node2 was updated to 550.90 and the Fabric Manager, still 550.54, refuses to start.

    Fix: install the Fabric Manager of exactly the driver's version and `systemctl restart nvidia-fabricmanager`.

    Known limits: in a container that sees no host processes, and on virtual machines whose switches are managed
    outside, only NVML's state is judged.
    """
    claims = gpu_claims(job)
    if not claims:
        yield not_applicable("NVSwitch fabric", "nothing in the job requests GPUs")
        return
    states: dict[str, list[tuple[int, int, int | None, str]]] = {}
    for item in all_devices(job, facts):
        state = item.gpu.fabric_state
        if state:
            states.setdefault(item.node, []).append((item.gpu.index, state, item.gpu.fabric_status, item.label))
    yield from _unregistered_gpus(states, claims)
    broken = {
        node for node, found in states.items() if any(_is_not_ready(state, status) for _, state, status, _ in found)
    }
    absent: dict[str, Fabric] = {}
    other: dict[tuple[str, str], list[str]] = {}
    well, without = 0, 0
    for seen in facts.each(fabric):
        node = seen.node
        if not isinstance(seen.fact, Observed):
            yield unknown(f"NVSwitch fabric on {node}", seen.fact.reason, nodes=(node,))
            continue
        value = seen.fact.value
        fact = facts.of(gpus, node)
        driver = fact.value.driver if isinstance(fact, Observed) else ""
        if node in broken:
            continue
        if not value.switches and node not in states:
            # Only a driver that responds can report that its GPUs have no fabric.
            if isinstance(fact, Observed) and not fact.value.problem:
                without += 1
            else:
                yield unknown(f"NVSwitch fabric on {node}", "blocked by GPU011: its GPUs are not known", nodes=(node,))
            continue
        ready = node in states
        stopped = value.running is False or value.service in ("failed", "inactive")
        if not ready and stopped and value.running is not True:
            absent[node] = value
        elif not ready and value.running is None and value.service != "active":
            yield unknown(
                f"NVSwitch fabric on {node}", "whether its Fabric Manager runs cannot be seen from here", nodes=(node,)
            )
        elif value.version and driver and value.version != driver:
            other.setdefault((value.version, driver), []).append(node)
        else:
            well += 1
    yield from _missing_manager(absent, facts, claims)
    for (version, driver), nodes in other.items():
        yield failed(
            f"Fabric Manager {version}",
            f"the Fabric Manager on {fold(nodes)} is {version}, and the driver {driver}: it will not restart",
            at=Evidence("nv-fabricmanager --version", version, driver, "nv-fabricmanager --version", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Install the Fabric Manager of version {driver} on {fold(nodes)} and restart it.",
            severity=Severity.WARNING,
        )
    if well:
        yield passed(f"NVSwitch fabric on {well} nodes")
    elif without and not broken and not absent and not other:
        yield not_applicable("NVSwitch fabric", f"{without} nodes have no NVSwitch")


def _is_not_ready(state: int, status: int | None) -> bool:
    return state != _COMPLETED or bool(status)


def _unregistered_gpus(
    states: dict[str, list[tuple[int, int, int | None, str]]], claims: tuple[Claim, ...]
) -> Iterator[Verdict]:
    found = [
        (node, label, f"{STATES.get(state, state)}" + (f", status {status}" if status else ""))
        for node, devices in states.items()
        for _, state, status, label in devices
        if _is_not_ready(state, status)
    ]
    if not found:
        return
    nodes = tuple(dict.fromkeys(node for node, _, _ in found))
    shown = fold((f"{label}: {text}" for _, label, text in found), 4)
    yield failed(
        "fabric state",
        f"GPUs are not registered with their NVSwitch fabric: {shown}",
        at=Evidence("NVML", f"{found[0][1]}: {found[0][2]}", "completed", "nvidia-smi -q | grep -A4 Fabric", nodes[0]),
        also=claims,
        nodes=nodes,
        remedy=f"`systemctl restart nvidia-fabricmanager` on {fold(nodes)} (its version must be the driver's), and "
        "reset GPUs whose state does not change.",
        run=(root_command("systemctl", "restart", "nvidia-fabricmanager", on=nodes),),
    )


def _missing_manager(fabrics: dict[str, Fabric], facts: Facts, claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    if not fabrics:
        return
    node, value = next(iter(fabrics.items()))
    fact = facts.of(gpus, node)
    driver = fact.value.driver if isinstance(fact, Observed) else ""
    differs = value.version and driver and value.version != driver
    reason = f"; its version {value.version} is not the driver's, {driver}" if differs else ""
    yield failed(
        "Fabric Manager",
        f"{fold(fabrics)} {'has' if len(fabrics) == 1 else 'have'} NVSwitches and no running Fabric Manager{reason}",
        at=Evidence(
            "Fabric Manager",
            value.service or "no process",
            "active, of the driver's version",
            "systemctl status nvidia-fabricmanager",
            node,
        ),
        also=claims,
        nodes=tuple(fabrics),
        remedy=f"Install nvidia-fabricmanager {driver or 'of the driver version'} on {fold(fabrics)} and "
        "`systemctl enable --now nvidia-fabricmanager`.",
        run=(root_command("systemctl", "enable", "--now", "nvidia-fabricmanager", on=fabrics),),
    )
