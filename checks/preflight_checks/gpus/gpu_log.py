"""What the kernel's log tells of GPUs and switches that went wrong since boot."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from preflight.job import Job
from preflight.judgement import Verdict, check, failed, not_applicable, passed, unknown
from preflight.outcome import Confidence, Evidence, Severity
from preflight.recording import Facts, Fleet, Observed
from preflight.request import Request, probe_name
from preflight_checks.demands import fold, gpu_claims
from preflight_checks.probes.gpus import Gpus, gpus
from preflight_checks.probes.kernel_log import Complaint, KernelLog, kernel_log
from preflight_checks.tables import table

#: What is older has most likely been looked at, or the GPU has been reset since.
RECENT_S = 24 * 3600.0


@functools.cache
def classes() -> dict[int, str]:
    """The class of each Xid code, from data/xid.toml."""
    return {code: row["class"] for row in table("xid")["xid"] for code in row["codes"]}


@functools.cache
def _meanings() -> dict[int, str]:
    return {row["code"]: row["text"] for row in table("xid")["meaning"]}


def _plan(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Request]:
    claims = gpu_claims(job)
    for node in fleet.reached if claims else ():
        yield Request(probe_name(kernel_log), node.name, because=claims, deadline_s=7.5)


@check(
    "GPU022",
    "gpu-xid-logged",
    plan=_plan,
    probes=(kernel_log, gpus),
    cost="reads the kernel messages since boot from the journal, else from /dev/kmsg; a second or two",
    without_root="the kernel's messages, where neither the journal nor /dev/kmsg is open to the user",
    severity=Severity.ERROR,
    evidence=(
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html",
        "Azure/azurehpc-health-checks",
        "https://www.datacenterdynamics.com/en/news/meta-report-details-hundreds-of-gpu-and-hbm3-related-interruptions-to-llama-3-training-run/",
    ),
)
def gpu_xid_logged(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The driver has not lately logged that a GPU or NVSwitch is at fault.

    What it checks: Xid and SXid messages in the kernel's log since boot. Codes that NVIDIA's catalogue answers with
    a reset or an exchange are errors when they are less than a day old, NVLink errors and memory repairs are
    warnings, those of programs are noted.

    Why it matters: a card that has fallen off the bus once does it again; over half of the interruptions of a long
    training were GPUs and their memory.

    Example: `NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus` two hours ago on node4.

    Fix: drain the node, reset the GPU or reboot, and follow the catalogue for the code.

    Known limits: the log ends at the last boot and, read from /dev/kmsg, at its size; whether a GPU was reset since
    is not known. Unlisted codes are noted only.

    Evidence: NVIDIA's Xid catalogue; a sample log of Azure's node health checks (Xid 119); Meta's Llama 3 report.
    """
    claims = gpu_claims(job)
    if not claims:
        yield not_applicable("driver messages", "nothing in the job asks for GPUs")
        return
    hidden: dict[str, list[str]] = {}
    grouped: dict[tuple[str, int, Severity], list[tuple[str, KernelLog, Complaint]]] = {}
    quiet = []
    for seen in facts.each(kernel_log):
        if not isinstance(seen.fact, Observed):
            hidden.setdefault(seen.fact.reason, []).append(seen.node)
            continue
        log = seen.fact.value
        if not log.complaints:
            quiet.append(seen.node)
        for complaint in log.complaints:
            key = (complaint.kind, complaint.code, severity_of(complaint))
            grouped.setdefault(key, []).append((seen.node, log, complaint))
    for reason, unread in hidden.items():
        yield unknown(f"driver messages on {fold(unread)}", reason)
    cards = facts.observed(gpus)
    for (kind, code, severity), found in grouped.items():
        node, log, first = found[0]
        nodes = tuple(dict.fromkeys(item[0] for item in found))
        name = f"{'SXid' if kind == 'sxid' else 'Xid'} {code}"
        meaning = _meanings().get(code, "") if kind == "xid" else ""
        shown = fold((_shown(item[0], item[2], cards.get(item[0])) for item in found), 4)
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


def severity_of(complaint: Complaint) -> Severity:
    """How bad it is that the driver said this, this long ago."""
    recent = complaint.last_age_s is None or complaint.last_age_s < RECENT_S
    if complaint.kind == "sxid":
        fatal = complaint.text.lower().startswith("fatal")
        return (Severity.ERROR if recent else Severity.WARNING) if fatal else Severity.INFO
    known = classes().get(complaint.code, "")
    if known == "hardware":
        return Severity.ERROR if recent else Severity.WARNING
    return Severity.WARNING if known in ("link", "watch") and recent else Severity.INFO


def _shown(node: str, complaint: Complaint, cards: Gpus | None) -> str:
    index = [card.index for card in cards.gpus if card.pci == complaint.pci] if cards is not None else []
    where = f"GPU {index[0]} ({complaint.pci})" if index else complaint.pci
    times = f"{complaint.count} times" if complaint.count > 1 else "once"
    age = "" if complaint.last_age_s is None else f", last {_ago(complaint.last_age_s)} ago"
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
        return "Nothing before the job; look at the program that ran then if it was yours."
    return (
        f"Drain {fold(nodes)} and reset the GPU or reboot; NVIDIA's catalogue says what {code} wants: "
        "https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html"
    )
