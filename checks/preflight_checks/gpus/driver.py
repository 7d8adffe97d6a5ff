"""Checks that GPU drivers respond as quickly as healthy ones, and the kernel log for GPU and NVSwitch faults since
boot.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

from preflight.model.findings import Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.data_tables import table
from preflight_checks.gpus.device_findings import all_devices
from preflight_checks.gpus.presence import plan_gpus
from preflight_checks.plans import combined, known_facts, missing_facts, on_every_node
from preflight_checks.probes.gpus import Gpus, ToolAnswer, gpus, management_tool
from preflight_checks.probes.kernel_log import DriverMessage, KernelLog, kernel_log
from preflight_checks.requirements import fold, gpu_claims

#: A healthy tool takes well under a second for eight GPUs, or a few seconds if it must wake them first.
SLOW_S = 5.0


@check(
    "GPU024",
    "gpu-driver-slow",
    plan=combined(plan_gpus, on_every_node(management_tool, needed_by=gpu_claims, deadline_s=8.0)),
    cost="queries NVML, and runs `nvidia-smi -L` or `rocm-smi -i` once; six seconds at most",
    severity=Severity.WARNING,
    evidence=(
        "AMD-AGI/Primus",
        (
            "the latency checks of AMD-AGI/Primus and imbue-ai/cluster-health",
            "https://github.com/imbue-ai/cluster-health",
        ),
    ),
)
def gpu_driver_slow(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The driver and the vendor's tool respond at once, for every GPU.

    What it checks: whether NVML answers for each GPU within its deadline, and how long `nvidia-smi -L` (or
    `rocm-smi -i`) takes and with which exit code it ends.

    Why it matters: a driver that is about to hang is slow first; the job's first CUDA call then never returns.

    Example: `nvidia-smi -L` takes 20 s on node2 and 0.1 s elsewhere.

    Fix: drain the node and reboot it; look at its kernel log for Xid messages.

    Known limits: without persistence mode the first query wakes the cards and may take seconds. A node without
    the tool is judged by NVML alone.
    """
    claims = gpu_claims(job)
    if not claims:
        yield not_applicable("driver latency", "nothing in the job requests GPUs")
        return
    silent: dict[str, tuple[str, str]] = {}
    for node, value in facts.observed(gpus).items():
        if value.problem == "timeout":
            silent[node] = ("the driver", value.detail)
    for item in all_devices(job, facts):
        if item.gpu.problem_kind == "timeout":
            silent[item.label] = (item.node, item.gpu.problem)
    if silent:
        label, (_, problem) = next(iter(silent.items()))
        nodes = tuple(dict.fromkeys(label.split(" ")[0] for label in silent))
        yield failed(
            "NVML",
            f"NVML did not answer: {fold((f'{label}: {problem}' for label, (_, problem) in silent.items()), 4)}",
            at=Evidence("NVML", f"{label}: {problem}", "an immediate response", "timeout 10 nvidia-smi -q", nodes[0]),
            also=claims,
            nodes=nodes,
            remedy=f"Drain {fold(nodes)} and reboot; look for Xid messages in `dmesg`.",
        )
    slow: dict[str, ToolAnswer] = {}
    failing: dict[str, ToolAnswer] = {}
    quick = []
    for seen in facts.each(management_tool):
        if not isinstance(seen.fact, Observed):
            if seen.fact.kind != "missing":
                yield unknown(f"management tool on {seen.node}", seen.fact.reason, nodes=(seen.node,))
            continue
        answer = seen.fact.value
        if answer.exit_code is None or answer.took_s > SLOW_S:
            slow[seen.node] = answer
        elif answer.exit_code != 0:
            failing[seen.node] = answer
        else:
            quick.append(seen.node)
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
        seen = f"no answer within {answer.took_s:g} s"
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
    """The class of each Xid code, from data/xid.toml."""
    return {code: row["class"] for row in table("xid")["xid"] for code in row["codes"]}


@functools.cache
def _meanings() -> dict[int, str]:
    return {row["code"]: row["text"] for row in table("xid")["meaning"]}


@check(
    "GPU022",
    "gpu-xid-logged",
    plan=on_every_node(kernel_log, needed_by=gpu_claims, deadline_s=7.5),
    probes=(kernel_log, gpus),
    cost="reads the kernel messages since boot from the journal, else from /dev/kmsg; a second or two",
    without_root="the kernel's messages, if the user may read neither the journal nor /dev/kmsg",
    severity=Severity.ERROR,
    evidence=(
        ("NVIDIA's Xid catalogue", "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"),
        "Azure/azurehpc-health-checks",
        (
            "Meta's Llama 3 report",
            "https://www.datacenterdynamics.com/en/news/meta-report-details-hundreds-of-gpu-and-hbm3-related-interruptions-to-llama-3-training-run/",
        ),
        "a sample log of Azure's node health checks (Xid 119)",
    ),
)
def gpu_xid_logged(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The driver has not recently logged a fault of a GPU or NVSwitch.

    What it checks: Xid and SXid messages in the kernel's log since boot. Codes for which NVIDIA's catalogue advises a
    reset or replacement are errors if less than a day old; NVLink errors and memory repairs are warnings; errors of
    programs are noted.

    Why it matters: a card that has fallen off the bus once does so again; GPUs and their memory caused over half of
    the interruptions of a long training run.

    Example: `NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus` two hours ago on node4.

    Fix: drain the node, reset the GPU or reboot, and follow the catalogue for the code.

    Known limits: the log ends at the last boot and, read from /dev/kmsg, at its size; whether a GPU was reset since
    is not known. Unlisted codes are noted only.
    """
    claims = gpu_claims(job)
    if not claims:
        yield not_applicable("driver messages", "nothing in the job requests GPUs")
        return
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
    """The severity of a message of this class and age."""
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
        return "No action is needed before the job; if the program that ran then was yours, inspect it."
    return (
        f"Drain {fold(nodes)} and reset the GPU or reboot; NVIDIA's catalogue gives the action for {code}: "
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
    )
