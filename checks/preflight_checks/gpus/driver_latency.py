"""Checks that GPU drivers respond as quickly as healthy ones."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.gpus.device_findings import all_devices
from preflight_checks.gpus.presence import plan_gpus
from preflight_checks.planning import combined, on_every_node
from preflight_checks.probes.gpus import gpus
from preflight_checks.probes.tools import ToolAnswer, management_tool
from preflight_checks.requirements.backends import gpu_claims
from preflight_checks.requirements.hosts import fold

#: A healthy tool takes well under a second for eight GPUs, or a few seconds if it must wake them first.
SLOW_S = 5.0


@check(
    "GPU024",
    "gpu-driver-slow",
    plan=combined(plan_gpus, on_every_node(management_tool, needed_by=gpu_claims, deadline_s=8.0)),
    probes=(gpus, management_tool),
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
    yield from _judge_answers(facts)
    if (well or quick) and not silent and not slow and not failing:
        yield passed(f"driver latency on {len(set(well) | set(quick))} nodes")


def _judge_answers(facts: Facts) -> Iterator[Verdict]:
    """The nodes without any answer of NVML."""
    for seen in facts.each(gpus):
        if not isinstance(seen.fact, Observed):
            yield unknown(f"driver latency on {seen.node}", seen.fact.reason, nodes=(seen.node,))


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
