"""Checks of the GPUs' connections (PCIe, NVLink, Fabric Manager), the driver, and the errors in its log."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, root_command, unknown
from preflight_checks.gpus.presence import (
    Fault,
    NodeGpu,
    all_devices,
    gpu_check,
    judge_devices,
    known_fault,
    most_common_by_model,
    plan_gpus,
)
from preflight_checks.plans import (
    combine_plans,
    known_facts,
    missing_facts,
    on_every_node,
    only_if,
    requests_gpus,
    table,
)
from preflight_checks.probes.devices import Fabric, fabric
from preflight_checks.probes.gpus import Gpus, ToolAnswer, gpus, management_tool
from preflight_checks.probes.leftovers import DriverMessage, KernelLog, kernel_log
from preflight_checks.requirements import fold, gpu_claims


@gpu_check("GPU016", "gpu-pcie-narrow", severity=Severity.WARNING)
def gpu_pcie_narrow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every GPU has as many PCIe lanes, and the same fastest generation, as the others of its model.

    What it checks: the current link width, compared with the maximum of card and slot and with other GPUs of the
    model, and the fastest generation, compared with the others'.

    Why it matters: a card that uses 4 of 16 lanes moves data at a quarter of the speed, and all ranks wait for it.

    Example: GPU 5 of node2 runs on 8 lanes, and the other 31 on 16.

    Fix: reseat the card or riser, and check the slot's setting in the firmware.

    Known limits: the current speed (generation) is not judged, because an idle link slows down to save power. If all
    GPUs of a model are equally narrow, the machines are built that way, and this is only noted.
    """
    yield from judge_devices(job, facts, "PCIe links", ("pcie_width",), _find_narrow_pcie)


def _find_narrow_pcie(devices: list[NodeGpu]) -> Iterable[Fault]:
    widths = most_common_by_model(devices, lambda gpu: gpu.pcie_width)
    fastest = most_common_by_model(devices, lambda gpu: gpu.pcie_generation_max)
    for item in devices:
        gpu = item.gpu
        width, usual, most = gpu.pcie_width, widths.get(gpu.name), gpu.pcie_width_max
        generation, common = gpu.pcie_generation_max, fastest.get(gpu.name)
        narrower = width is not None and usual is not None and width < usual
        # Without a majority, compare with the card's own maximum.
        below_own = width is not None and most is not None and width < most and usual != width
        if narrower or below_own:
            lanes = max(most or 0, usual or 0)
            yield known_fault("PCIe width", item, f"has {width} of {lanes} lanes", lanes=lanes)
        elif width is not None and most is not None and width < most:
            yield known_fault("PCIe width of all", item, f"has {width} of {most} lanes", lanes=most)
        if generation is not None and common is not None and generation < common:
            yield known_fault("PCIe generation", item, f"at most generation {generation}", common=common)


@gpu_check("GPU017", "gpu-nvlink-down", severity=Severity.ERROR)
def gpu_nvlink_down(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every GPU has as many active NVLinks as the others of its model.

    What it checks: the number of active links on each GPU, compared with other GPUs of the model, and the links'
    recovery counters.

    Why it matters: traffic between GPUs of the node moves to PCIe or fails, and a link that recovers again and again
    is about to be lost.

    Example: GPU 2 of node1 has 11 links up, all others 12.

    Fix: reset all GPUs of the node (and its NVSwitches) or reboot; when the link stays down, replace the hardware.

    Known limits: links that are down on all GPUs of a model (cards without bridges) are assumed to be built that way.
    A card without links among others with links is a warning, because it may lack a bridge.
    """
    yield from judge_devices(job, facts, "NVLinks", ("nvlinks",), _find_down_nvlinks)


def _find_down_nvlinks(devices: list[NodeGpu]) -> Iterable[Fault]:
    usual = most_common_by_model(devices, lambda gpu: None if gpu.nvlinks is None else sum(gpu.nvlinks))
    for item in devices:
        links = item.gpu.nvlinks or []
        common = usual.get(item.gpu.name, 0)
        if sum(links) < common:
            down = [index for index, up in enumerate(links) if not up]
            kind = "NVLinks down" if any(links) else "no NVLink is up"
            yield known_fault(
                kind, item, f"has {sum(links)} of {common} up (down: {fold_numbers(down)})", common=common
            )
        recoveries = item.gpu.nvlink_errors.get("recovery", 0)
        if recoveries:
            yield known_fault("NVLink recoveries", item, f"counts {recoveries}")


def fold_numbers(numbers: list[int]) -> str:
    """Format link numbers: list up to six of them; otherwise give only their count (`12 links`)."""
    return ", ".join(map(str, numbers)) if len(numbers) <= 6 else f"{len(numbers)} links"


#: nvml.h, NVML_GPU_FABRIC_STATE_*: 0 is "not supported".
STATES = {1: "not started", 2: "in progress", 3: "completed"}
_COMPLETED = 3


@check(
    "GPU023",
    "gpu-fabric-not-ready",
    plan=combine_plans(plan_gpus, on_every_node(fabric, needed_by=gpu_claims, deadline_s=5.0)),
    severity=Severity.ERROR,
)
@only_if(requests_gpus, "NVSwitch fabric", "nothing in the job requests GPUs")
def gpu_fabric_not_ready(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """On nodes with NVSwitches the Fabric Manager runs, matches the driver's version, and has set up every GPU.

    What it checks: NVML's fabric state of each GPU that has one (H100 and later), otherwise whether the Fabric
    Manager's process or service exists; in both cases, whether its version equals the driver's.

    Why it matters: without it every CUDA program on the node ends with error 802, "system not yet initialized".

    Example: the driver of node2 was updated to 550.90, but the Fabric Manager is still 550.54 and refuses to start.

    Fix: install the Fabric Manager of exactly the driver's version and `systemctl restart nvidia-fabricmanager`.

    Known limits: in a container that sees no host processes, and on virtual machines whose switches are managed
    outside, only NVML's state is judged.
    """
    claims = gpu_claims(job)
    states: dict[str, list[tuple[int, int, int | None, str]]] = {}
    for item in all_devices(job, facts):
        state = item.gpu.fabric_state
        if state:
            states.setdefault(item.node, []).append((item.gpu.index, state, item.gpu.fabric_status, item.label))
    yield from _unregistered_gpu_findings(states, claims)
    broken = {
        node for node, found in states.items() if any(_is_not_ready(state, status) for _, state, status, _ in found)
    }
    absent: dict[str, Fabric] = {}
    other: dict[tuple[str, str], list[str]] = {}
    well, without = 0, 0
    observed = yield from known_facts(facts, fabric, "NVSwitch fabric")
    for node, value in observed.items():
        fact = facts.of(gpus, node)
        driver = fact.value.driver if isinstance(fact, Observed) else ""
        if node in broken:
            continue
        if not value.switches and node not in states:
            # Only a driver that responds can report that its GPUs have no fabric.
            if isinstance(fact, Observed) and not fact.value.problem:
                without += 1
            else:
                yield unknown(f"NVSwitch fabric on {node}", "blocked by GPU011: its GPUs are unknown", nodes=(node,))
            continue
        ready = node in states
        stopped = value.running is False or value.service in ("failed", "inactive")
        if not ready and stopped and value.running is not True:
            absent[node] = value
        elif not ready and value.running is None and value.service != "active":
            yield unknown(
                f"NVSwitch fabric on {node}",
                "whether its Fabric Manager runs cannot be determined from here",
                nodes=(node,),
            )
        elif value.version and driver and value.version != driver:
            other.setdefault((value.version, driver), []).append(node)
        else:
            well += 1
    yield from _missing_manager_findings(absent, facts, claims)
    for (version, driver), nodes in other.items():
        yield failed(
            f"Fabric Manager {version}",
            f"the Fabric Manager on {fold(nodes)} is {version}, but the driver is {driver}: the Fabric Manager will "
            "not restart",
            at=Evidence("nv-fabricmanager --version", version, driver, "nv-fabricmanager --version", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Install Fabric Manager {driver} on {fold(nodes)} and restart it.",
            severity=Severity.WARNING,
        )
    if well:
        yield passed(f"NVSwitch fabric on {well} nodes")
    elif without and not broken and not absent and not other:
        yield not_applicable("NVSwitch fabric", f"{without} nodes have no NVSwitch")


def _is_not_ready(state: int, status: int | None) -> bool:
    return state != _COMPLETED or bool(status)


def _unregistered_gpu_findings(
    states: dict[str, list[tuple[int, int, int | None, str]]], claims: tuple[Claim, ...]
) -> Iterator[Verdict]:
    unregistered = [
        (node, label, f"{STATES.get(state, state)}" + (f", status {status}" if status else ""))
        for node, devices in states.items()
        for _, state, status, label in devices
        if _is_not_ready(state, status)
    ]
    if not unregistered:
        return
    nodes = tuple(dict.fromkeys(node for node, _, _ in unregistered))
    shown = fold((f"{label}: {text}" for _, label, text in unregistered), 4)
    yield failed(
        "fabric state",
        f"GPUs are not registered with their NVSwitch fabric: {shown}",
        at=Evidence(
            "NVML",
            f"{unregistered[0][1]}: {unregistered[0][2]}",
            "completed",
            "nvidia-smi -q | grep -A4 Fabric",
            nodes[0],
        ),
        also=claims,
        nodes=nodes,
        remedy=f"`systemctl restart nvidia-fabricmanager` on {fold(nodes)} (its version must equal the driver's), "
        "and reset GPUs whose state does not change.",
        run=(root_command("systemctl", "restart", "nvidia-fabricmanager", on=nodes),),
    )


def _missing_manager_findings(fabrics: dict[str, Fabric], facts: Facts, claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    if not fabrics:
        return
    node, value = next(iter(fabrics.items()))
    fact = facts.of(gpus, node)
    driver = fact.value.driver if isinstance(fact, Observed) else ""
    differs = value.version and driver and value.version != driver
    reason = f"; its version is {value.version}, but the driver's is {driver}" if differs else ""
    yield failed(
        "Fabric Manager",
        f"{fold(fabrics)} {'has' if len(fabrics) == 1 else 'have'} NVSwitches but no running Fabric Manager{reason}",
        at=Evidence(
            "Fabric Manager",
            value.service or "no process",
            "active, with the driver's version",
            "systemctl status nvidia-fabricmanager",
            node,
        ),
        also=claims,
        nodes=tuple(fabrics),
        remedy=f"Install nvidia-fabricmanager {driver or 'of the driver version'} on {fold(fabrics)} and "
        "`systemctl enable --now nvidia-fabricmanager`.",
        run=(root_command("systemctl", "enable", "--now", "nvidia-fabricmanager", on=fabrics),),
    )


#: A healthy tool takes well under a second for eight GPUs, or a few seconds if it must wake them first.
SLOW_S = 5.0


@check(
    "GPU024",
    "gpu-driver-slow",
    plan=combine_plans(plan_gpus, on_every_node(management_tool, needed_by=gpu_claims, deadline_s=8.0)),
    severity=Severity.WARNING,
)
@only_if(requests_gpus, "driver latency", "nothing in the job requests GPUs")
def gpu_driver_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The driver and the vendor's tool respond immediately for every GPU.

    What it checks: whether NVML responds for each GPU within its deadline, and the time and exit code of `nvidia-smi
    -L` (or `rocm-smi -i`).

    Why it matters: a driver that is about to hang is slow first; the job's first CUDA call then never returns.

    Example: `nvidia-smi -L` takes 20 s on node2 and 0.1 s elsewhere.

    Fix: drain the node and reboot it; check its kernel log for Xid messages.

    Known limits: without persistence mode the first query wakes the cards and may take seconds. On a node without the
    tool, only NVML is used.
    """
    claims = gpu_claims(job)
    observed = facts.observed(gpus).items()
    late = [item for item in all_devices(job, facts) if item.gpu.problem_kind == "timeout"]
    silent = {node: ("the driver", value.detail) for node, value in observed if value.problem == "timeout"}
    silent |= {item.label: (item.node, item.gpu.problem) for item in late}
    if silent:
        label, (_, problem) = next(iter(silent.items()))
        nodes = tuple(dict.fromkeys(label.split(" ")[0] for label in silent))
        yield failed(
            "NVML",
            f"NVML did not respond: {fold((f'{label}: {problem}' for label, (_, problem) in silent.items()), 4)}",
            at=Evidence("NVML", f"{label}: {problem}", "an immediate response", "timeout 10 nvidia-smi -q", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Drain {fold(nodes)} and reboot; look for Xid messages in `dmesg`.",
        )
    slow: dict[str, ToolAnswer] = {}
    failing: dict[str, ToolAnswer] = {}
    quick = []
    for row in facts.each(management_tool):
        if not isinstance(row.fact, Observed):
            if row.fact.kind != "missing":
                yield unknown(f"management tool on {row.node}", row.fact.reason, nodes=(row.node,))
            continue
        answer = row.fact.value
        if answer.exit_code is None or answer.took_s > SLOW_S:
            slow[row.node] = answer
        elif answer.exit_code != 0:
            failing[row.node] = answer
        else:
            quick.append(row.node)
    yield from _tool_findings(slow, "slow", claims)
    yield from _tool_findings(failing, "failing", claims)
    well = [node for node, value in facts.observed(gpus).items() if not value.problem and node not in slow]
    yield from missing_facts(facts, gpus, "driver latency")
    if (well or quick) and not silent and not slow and not failing:
        yield passed(f"driver latency on {len(set(well) | set(quick))} nodes")


def _tool_findings(answers: dict[str, ToolAnswer], kind: str, claims: tuple[Claim, ...]) -> Iterator[Verdict]:
    if not answers:
        return
    node, answer = next(iter(answers.items()))
    tool = answer.tool.rpartition("/")[2]
    quoted = f": {answer.said}" if answer.said else ""
    if answer.exit_code is None:
        seen = f"no response within {answer.took_s:g} s"
    else:
        seen = f"exit code {answer.exit_code}{quoted}" if kind == "failing" else f"{answer.took_s:.1f} s"
    yield failed(
        f"management tool: {kind}",
        f"`{tool}` {'fails' if kind == 'failing' else 'hangs or is slow'} on {fold(answers)} ({seen})",
        at=Evidence(tool, seen, "a response within a second", f"time {answer.tool} -L", node),
        also=claims,
        nodes=tuple(answers),
        remedy=f"Drain {fold(answers)} and reboot; look for Xid messages in `dmesg`.",
    )


#: Older messages have most likely been handled, or the GPU has been reset since.
RECENT_S = 24 * 3600.0


@functools.cache
def classes() -> dict[int, str]:
    """Return the class of each Xid code, from data/xid.toml."""
    return {code: row["class"] for row in table("xid")["xid"] for code in row["codes"]}


@functools.cache
def _meanings() -> dict[int, str]:
    return {row["code"]: row["text"] for row in table("xid")["meaning"]}


@check(
    "GPU022",
    "gpu-xid-logged",
    plan=on_every_node(kernel_log, needed_by=gpu_claims, deadline_s=7.5),
    probes=(kernel_log, gpus),
    severity=Severity.ERROR,
)
@only_if(requests_gpus, "driver messages", "nothing in the job requests GPUs")
def gpu_xid_logged(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The driver has not recently logged a fault of a GPU or NVSwitch.

    What it checks: Xid and SXid messages in the kernel's log since boot. Codes for which NVIDIA's catalogue advises a
    reset or replacement are errors if less than a day old; NVLink errors and memory repairs are warnings; errors of
    programs are noted.

    Why it matters: a card that has fallen off the bus once does so again; GPUs and their memory caused over half of
    the interruptions of a long training run.

    Example: `NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus` two hours ago on node4.

    Fix: drain the node, reset the GPU or reboot, and follow the catalogue for the code.

    Known limits: the log begins at the last boot, or, if read from /dev/kmsg, covers only the buffer; whether a GPU was
    reset since then is unknown. Unlisted codes are only noted.
    """
    claims = gpu_claims(job)
    observed = yield from known_facts(facts, kernel_log, "driver messages")
    grouped: dict[tuple[str, int, Severity], list[tuple[str, KernelLog, DriverMessage]]] = {}
    quiet = []
    for on, log in observed.items():
        if not log.complaints:
            quiet.append(on)
        for message in log.complaints:
            key = (message.kind, message.code, severity_of(message))
            grouped.setdefault(key, []).append((on, log, message))
    cards = facts.observed(gpus)
    for (kind, code, severity), found in grouped.items():
        node, log, first = found[0]
        nodes = tuple(dict.fromkeys(item[0] for item in found))
        name = f"{'SXid' if kind == 'sxid' else 'Xid'} {code}"
        meaning = _meanings().get(code, "") if kind == "xid" else ""
        shown = fold((_device_text(item[0], item[2], cards.get(item[0])) for item in found), 4)
        yield failed(
            f"{name}: {severity.value}",
            f"the driver logged {name}{f' ({meaning})' if meaning else ''}: {shown}",
            at=Evidence(log.source, first.text or name, f"no {name}", "journalctl -k -b --grep 'Xid'", node),
            also=claims,
            nodes=nodes,
            remedy=_remedy(kind, code, severity, nodes),
            severity=severity,
            confidence=Confidence.HIGH if severity is Severity.ERROR else Confidence.MEDIUM,
        )
    if quiet:
        yield passed(f"driver messages on {len(quiet)} nodes")


def severity_of(message: DriverMessage) -> Severity:
    """Return the severity of a message of this class and age."""
    recent = message.last_age_s is None or message.last_age_s < RECENT_S
    if message.kind == "sxid":
        fatal = message.text.lower().startswith("fatal")
        return (Severity.ERROR if recent else Severity.WARNING) if fatal else Severity.INFO
    known = classes().get(message.code, "")
    if known == "hardware":
        return Severity.ERROR if recent else Severity.WARNING
    return Severity.WARNING if known in ("link", "watch") and recent else Severity.INFO


def _device_text(node: str, message: DriverMessage, cards: Gpus | None) -> str:
    index = [card.index for card in cards.gpus if card.pci == message.pci] if cards is not None else []
    where = f"GPU {index[0]} ({message.pci})" if index else message.pci
    times = f"{message.count} times" if message.count > 1 else "once"
    age = "" if message.last_age_s is None else f", last {_ago(message.last_age_s)} ago"
    return f"{node} {where} {times}{age}"


def _ago(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _remedy(kind: str, code: int, severity: Severity, nodes: tuple[str, ...]) -> str:
    if kind == "sxid":
        return f"Drain {fold(nodes)}, restart its Fabric Manager and reset the GPUs and switches, or reboot."
    if severity is Severity.INFO:
        return "No action is needed before the job; if the program that ran at that time was yours, inspect it."
    return (
        f"Drain {fold(nodes)} and reset the GPU or reboot; NVIDIA's catalogue gives the action for {code}: "
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
    )
