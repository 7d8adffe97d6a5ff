"""Findings about single GPUs: faults of devices, merged into one finding per kind of fault."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from preflight._util.sequences import grouped
from preflight.model.findings import Command, Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Unavailable
from preflight.plugins.authoring import Verdict, failed, not_applicable, passed, unknown
from preflight_checks.probes.gpus import Gpu, gpus
from preflight_checks.requirements import fold, gpu_claims, known_text, largest, scopes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU on its node; `used` is False if the job does not name it, or the node has more GPUs than the job uses."""

    node: str
    gpu: Gpu
    used: bool = True

    @property
    def label(self) -> str:
        """The node, index and both identifiers of the card, for messages."""
        identities = ", ".join(filter(None, (self.gpu.pci, self.gpu.uuid)))
        return f"{self.node} GPU {self.gpu.index}" + (f" ({identities})" if identities else "")


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one device. Faults of one `kind` become one finding.

    `summary` begins the message and is the same for the kind; `observed` is the value of this device.
    """

    kind: str
    at: NodeGpu
    summary: str
    observed: str
    expected: str
    remedy: str
    command: str = "nvidia-smi -q"
    severity: Severity | None = None
    confidence: Confidence | None = None
    run: Command | None = None


def expected_gpus(job: Job) -> tuple[int, tuple[Claim, ...]] | None:
    """The number of GPUs that each node must have: as the job states, else one per rank on the node."""
    held, ranks = largest(job, "gpus_per_node"), largest(job, "processes_per_node")
    return held if held is not None and held[0] > 0 else ranks


#: Memoized: a dozen checks use these devices, and a large fleet has a hundred thousand.
_LISTED: weakref.WeakKeyDictionary[Facts, dict[tuple[int | None, tuple[str, ...]], list[NodeGpu]]] = (
    weakref.WeakKeyDictionary()
)


def all_devices(job: Job, facts: Facts) -> list[NodeGpu]:
    """Every NVIDIA device that was found on any node, with or without a problem."""
    wanted = expected_gpus(job)
    key = (None if wanted is None else wanted[0], visible(job))
    listed = _LISTED.setdefault(facts, {})
    if key not in listed:
        listed[key] = [
            NodeGpu(node, gpu, _used(gpu, len(value.gpus), *key))
            for node, value in facts.observed(gpus).items()
            if value.vendor == "nvidia"
            for gpu in value.gpus
        ]
    return listed[key]


def _used(gpu: Gpu, device_count: int, wanted: int | None, named: tuple[str, ...]) -> bool:
    if named:
        return any(name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in named)
    return wanted is None or wanted >= device_count


def visible(job: Job) -> tuple[str, ...]:
    """The devices that the job names in CUDA_VISIBLE_DEVICES, by index or id; empty if none, or if launches differ."""
    visible = {known_text(job, "env.CUDA_VISIBLE_DEVICES", scope) or "" for scope in scopes(job)}
    names = [name.strip() for name in visible.pop().split(",")] if len(visible) == 1 else []
    return tuple(names) if names and all(name.isdecimal() or name.startswith("GPU-") for name in names) else ()


def differing(devices: Sequence[NodeGpu], value: Callable[[Gpu], T | None]) -> Iterator[tuple[NodeGpu, T, T]]:
    """Each device whose value differs from that of more than half of its model, with its own and the common value."""
    counts = _counted(devices, value)
    usual = _majorities({model: counter for model, counter in counts.items() if len(counter) > 1})
    for item in devices if usual else ():
        current = value(item.gpu)
        if current is not None and item.gpu.name in usual and current != usual[item.gpu.name]:
            yield item, current, usual[item.gpu.name]


def most_common_by_model(devices: Sequence[NodeGpu], value: Callable[[Gpu], T | None]) -> dict[str, T]:
    """For each model, the value that more than half of its devices share, if any."""
    return _majorities(_counted(devices, value))


def _counted(devices: Sequence[NodeGpu], value: Callable[[Gpu], T | None]) -> dict[str, dict[T, int]]:
    counts: dict[str, dict[T, int]] = {}
    for (model, seen), count in Counter((item.gpu.name, value(item.gpu)) for item in devices).items():
        if seen is not None:
            counts.setdefault(model, {})[seen] = count
    return counts


def _majorities(counts: Mapping[str, Mapping[T, int]]) -> dict[str, T]:
    found: dict[str, T] = {}
    for model, counter in counts.items():
        common = max(counter, key=counter.__getitem__)
        if 2 * counter[common] > sum(counter.values()):
            found[model] = common
    return found


def judge_devices(
    job: Job,
    facts: Facts,
    subject: str,
    needs: tuple[str, ...],
    find_faults: Callable[[list[NodeGpu]], Iterable[Fault]],
) -> Iterator[Verdict]:
    """Findings of `find_faults`, `unknown` for devices that could not be examined, and `passed` for healthy ones.

    Args:
        subject: what is judged, such as "GPU memory".
        needs: fields of `Gpu`; a device is judged if it has one of them.
        find_faults: finds the faults among the devices that can be judged.
    """
    if not gpu_claims(job):
        yield not_applicable(subject, "nothing in the job requests GPUs")
        return
    yield from _unexamined(facts, subject)
    every = all_devices(job, facts)
    judged = [item for item in every if any(getattr(item.gpu, name) is not None for name in needs)]
    yield from _unreadable(every, subject, needs)
    faults = list(find_faults(judged))
    yield from findings(job, faults)
    faulty = {(fault.at.node, fault.at.gpu.index) for fault in faults}
    well = [item.node for item in judged if not item.gpu.problem]
    if faulty:
        sound = (item for item in judged if not item.gpu.problem)
        well = [item.node for item in sound if (item.node, item.gpu.index) not in faulty]
    if well:
        yield passed(f"{subject} of {len(well)} GPUs on {len(set(well))} nodes")
    elif every and not judged and not any(item.gpu.problem or item.gpu.unread for item in every):
        yield not_applicable(subject, "no GPU of these nodes reports it")


def findings(job: Job, faults: Iterable[Fault]) -> Iterator[Verdict]:
    """One finding per kind; it is at most a warning if all its devices may be unused by the job."""
    groups = grouped(((fault.kind, fault.at.used), fault) for fault in faults)
    for (kind, used), found in groups.items():
        first = found[0]
        nodes = tuple(dict.fromkeys(fault.at.node for fault in found))
        other = "does not select it" if visible(job) else "uses fewer GPUs than the node has and may not use this one"
        spare = "" if used else f"; the job {other}"
        milder = not used and first.severity in (None, Severity.ERROR)
        yield failed(
            kind if used else f"{kind} (unused GPUs)",
            f"{first.summary}: {fold((f'{fault.at.label} {fault.observed}' for fault in found), 4)}{spare}",
            at=Evidence("NVML", f"{first.at.label}: {first.observed}", first.expected, first.command, first.at.node),
            also=gpu_claims(job),
            nodes=nodes,
            remedy=first.remedy.format(nodes=fold(nodes), index=first.at.gpu.index, node=first.at.node),
            severity=Severity.WARNING if milder else first.severity,
            confidence=Confidence.MEDIUM if milder else first.confidence,
            run=_commands(found),
        )


def _commands(faults: Iterable[Fault]) -> list[Command]:
    """The commands for these faults; equal lines are listed once for all nodes."""
    nodes: dict[str, dict[str, None]] = {}
    for fault in faults:
        if fault.run is not None:
            nodes.setdefault(fault.run.line, {})[fault.at.node] = None
    return [Command(line, tuple(names)) for line, names in nodes.items()]


def _unexamined(facts: Facts, subject: str) -> Iterator[Verdict]:
    missing: dict[str, list[str]] = {}
    for seen in facts.each(gpus):
        if isinstance(seen.fact, Unavailable):
            missing.setdefault(seen.fact.reason, []).append(seen.node)
        elif seen.fact.value.problem:
            missing.setdefault("blocked by GPU011: its driver does not answer", []).append(seen.node)
        elif seen.fact.value.vendor != "nvidia":
            missing.setdefault("for AMD GPUs only their number and model are checked", []).append(seen.node)
        elif not seen.fact.value.gpus:
            missing.setdefault("blocked by GPU011: it shows no GPU", []).append(seen.node)
    for reason, nodes in missing.items():
        yield unknown(f"{subject} on {fold(nodes)}", reason)


def _unreadable(every: Iterable[NodeGpu], subject: str, needs: tuple[str, ...]) -> Iterator[Verdict]:
    missing: dict[str, list[str]] = {}
    for item in every:
        if not item.gpu.problem and not item.gpu.unread:
            continue
        reasons = {item.gpu.unread[name] for name in needs if name in item.gpu.unread}
        if item.gpu.problem and any(getattr(item.gpu, name) is None for name in needs):
            reasons.add(item.gpu.problem)
        for reason in sorted(reasons):
            missing.setdefault(reason, []).append(f"{item.node} GPU {item.gpu.index}")
    for reason, devices in missing.items():
        yield unknown(f"{subject} of {fold(devices, 4)}", reason)
