"""Judging GPUs one by one: which device of which node is at fault, folded into one finding for each kind of fault."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from preflight.job import Claim, Job
from preflight.judgement import Verdict, failed, not_applicable, passed, unknown
from preflight.lazy.dataclasses import dataclass
from preflight.outcome import Command, Confidence, Evidence, Severity
from preflight.recording import Facts, Observed, Unavailable
from preflight_checks.demands import fold, gpu_claims, known_text, largest, scopes
from preflight_checks.probes.gpus import Gpu, gpus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Placed:
    """A GPU on its node; `used` is False where the job does not name it, or the node has more than the job uses."""

    node: str
    gpu: Gpu
    used: bool = True

    @property
    def label(self) -> str:
        """Node, index and both identities by which people find a card."""
        identities = ", ".join(filter(None, (self.gpu.pci, self.gpu.uuid)))
        return f"{self.node} GPU {self.gpu.index}" + (f" ({identities})" if identities else "")


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one device. Faults of one `kind` become one finding.

    `what` begins the message and is the same for all of the kind; `seen` is what this device has.
    """

    kind: str
    at: Placed
    what: str
    seen: str
    expected: str
    remedy: str
    command: str = "nvidia-smi -q"
    severity: Severity | None = None
    confidence: Confidence | None = None
    run: Command | None = None


def expected_gpus(job: Job) -> tuple[int, tuple[Claim, ...]] | None:
    """GPUs each node must have: those the job holds, else one for each rank on the node."""
    held, ranks = largest(job, "gpus_per_node"), largest(job, "processes_per_node")
    return held if held is not None and held[0] > 0 else ranks


#: A dozen checks look at the same devices of the same facts, of which a large fleet has a hundred thousand.
_LISTED: weakref.WeakKeyDictionary[Facts, dict[tuple[int | None, tuple[str, ...]], list[Placed]]] = (
    weakref.WeakKeyDictionary()
)


def all_devices(job: Job, facts: Facts) -> list[Placed]:
    """Every NVIDIA device that was seen, of all nodes, with or without a problem."""
    wanted = expected_gpus(job)
    key = (None if wanted is None else wanted[0], visible(job))
    listed = _LISTED.setdefault(facts, {})
    if key not in listed:
        listed[key] = [
            Placed(node, gpu, _used(gpu, len(value.gpus), *key))
            for node, value in facts.observed(gpus).items()
            if value.vendor == "nvidia"
            for gpu in value.gpus
        ]
    return listed[key]


def _used(gpu: Gpu, there: int, wanted: int | None, named: tuple[str, ...]) -> bool:
    if named:
        return any(name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in named)
    return wanted is None or wanted >= there


def visible(job: Job) -> tuple[str, ...]:
    """The devices that the job names in CUDA_VISIBLE_DEVICES, by index or identity; empty where it names none, or
    several launches name others."""
    said = {known_text(job, "env.CUDA_VISIBLE_DEVICES", scope) or "" for scope in scopes(job)}
    names = [name.strip() for name in said.pop().split(",")] if len(said) == 1 else []
    return tuple(names) if names and all(name.isdigit() or name.startswith("GPU-") for name in names) else ()


def differing(devices: Sequence[Placed], value: Callable[[Gpu], T | None]) -> Iterator[tuple[Placed, T, T]]:
    """Each device whose value is not the one that more than half of its model have, with its own and the common one."""
    counts = _counted(devices, value)
    usual = _majorities({model: counter for model, counter in counts.items() if len(counter) > 1})
    for item in devices if usual else ():
        one = value(item.gpu)
        if one is not None and item.gpu.name in usual and one != usual[item.gpu.name]:
            yield item, one, usual[item.gpu.name]


def commonest(devices: Sequence[Placed], value: Callable[[Gpu], T | None]) -> dict[str, T]:
    """By model, the value that more than half of its devices have, where there is one."""
    return _majorities(_counted(devices, value))


def _counted(devices: Sequence[Placed], value: Callable[[Gpu], T | None]) -> dict[str, dict[T, int]]:
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
    look: Callable[[list[Placed]], Iterable[Fault]],
) -> Iterator[Verdict]:
    """Findings of `look`, `unknown` for what could not be seen, and a pass for what was seen and is well.

    Args:
        subject: what is judged, such as "GPU memory".
        needs: fields of `Gpu`; a device is judged when it has one of them.
        look: finds faults among the devices that can be judged.
    """
    if not gpu_claims(job):
        yield not_applicable(subject, "nothing in the job asks for GPUs")
        return
    yield from _unseen(facts, subject)
    every = all_devices(job, facts)
    judged = [item for item in every if any(getattr(item.gpu, name) is not None for name in needs)]
    yield from _unread(every, subject, needs)
    faults = list(look(judged))
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
    """One finding for each kind; a device that the job may not use makes it a warning at most."""
    groups: dict[tuple[str, bool], list[Fault]] = {}
    for fault in faults:
        groups.setdefault((fault.kind, fault.at.used), []).append(fault)
    for (kind, used), found in groups.items():
        first = found[0]
        nodes = tuple(dict.fromkeys(fault.at.node for fault in found))
        other = "does not name this one" if visible(job) else "uses fewer GPUs than the node has, perhaps not this one"
        spare = "" if used else f"; the job {other}"
        milder = not used and first.severity in (None, Severity.ERROR)
        yield failed(
            kind if used else f"{kind} (GPUs to spare)",
            f"{first.what}: {fold((f'{fault.at.label} {fault.seen}' for fault in found), 4)}{spare}",
            at=Evidence("NVML", f"{first.at.label}: {first.seen}", first.expected, first.command, first.at.node),
            also=gpu_claims(job),
            nodes=nodes,
            remedy=first.remedy.format(nodes=fold(nodes), index=first.at.gpu.index, node=first.at.node),
            severity=Severity.WARNING if milder else first.severity,
            confidence=Confidence.MEDIUM if milder else first.confidence,
            run=_commands(found),
        )


def _commands(found: Iterable[Fault]) -> list[Command]:
    """What to run for these, the same line once for all nodes."""
    nodes: dict[str, dict[str, None]] = {}
    for fault in found:
        if fault.run is not None:
            nodes.setdefault(fault.run.line, {})[fault.at.node] = None
    return [Command(line, tuple(names)) for line, names in nodes.items()]


def _unseen(facts: Facts, subject: str) -> Iterator[Verdict]:
    missing: dict[str, list[str]] = {}
    for seen in facts.each(gpus):
        if isinstance(seen.fact, Unavailable):
            missing.setdefault(seen.fact.reason, []).append(seen.node)
        elif seen.fact.value.problem:
            missing.setdefault("blocked by GPU011: its driver does not answer", []).append(seen.node)
        elif seen.fact.value.vendor != "nvidia":
            missing.setdefault("of AMD's GPUs only number and model are looked at", []).append(seen.node)
        elif not seen.fact.value.gpus:
            missing.setdefault("blocked by GPU011: it shows no GPU", []).append(seen.node)
    for reason, nodes in missing.items():
        yield unknown(f"{subject} on {fold(nodes)}", reason)


def _unread(every: Iterable[Placed], subject: str, needs: tuple[str, ...]) -> Iterator[Verdict]:
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


def driver_of(facts: Facts, node: str) -> str:
    """The driver's version on a node; empty where it is not known."""
    fact = facts.of(gpus, node)
    return fact.value.driver if isinstance(fact, Observed) else ""
