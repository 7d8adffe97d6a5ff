"""Checks that every node has the GPUs that its ranks use, all of one model, and helpers for all GPU checks."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from preflight._util.sequences import grouped
from preflight.model.findings import Command, Confidence, Evidence, Severity
from preflight.model.job import Claim, Job
from preflight.model.recording import Facts, Fleet, Observed, Unavailable
from preflight.plugins.authoring import Verdict, check, failed, memoize, not_applicable, passed, root_command, unknown
from preflight_checks.plans import missing_facts, on_every_node, only_if, requests_gpus, split, table
from preflight_checks.probes.gpus import DEADLINE_S, Gpu, Gpus, gpus
from preflight_checks.requirements import asked_backend, fold, gpu_claims, known_text, largest_value, scopes

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NodeGpu:
    """A GPU on its node. `used` is False if the job does not select it, or the node has more GPUs than the job uses."""

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
    """A fault of one device. All faults of a `kind` become one finding.

    `summary` begins the message, and is the same for all faults of the kind; `observed` is this device's value.
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


def known_fault(kind: str, at: NodeGpu, observed: str, *, remedy: str = "", **values: object) -> Fault:
    """Return a fault from `data/gpu_faults.toml`; `values` fill its summary, and `remedy` depends on the device."""
    row = table("gpu_faults")[kind]
    severity, confidence = row.get("severity"), row.get("confidence")
    return Fault(
        kind,
        at,
        row["summary"].format(**values),
        observed,
        row["expected"].format(**values),
        remedy or row["remedy"],
        row.get("command", "nvidia-smi -q"),
        Severity(severity) if severity else None,
        Confidence(confidence) if confidence else None,
    )


def expected_gpus(job: Job) -> tuple[int, tuple[Claim, ...]] | None:
    """Return the number of GPUs that each node must have: the job's number, or else one per rank on the node."""
    held, ranks = largest_value(job, "gpus_per_node"), largest_value(job, "processes_per_node")
    return held if held is not None and held[0] > 0 else ranks


@memoize
def all_devices(job: Job, facts: Facts) -> list[NodeGpu]:
    """Return all nodes' NVIDIA devices. Memoized: a dozen checks use them, and there may be a hundred thousand."""
    wanted, named = expected_gpus(job), visible_devices(job)
    return [
        NodeGpu(node, gpu, _is_used(gpu, len(value.gpus), None if wanted is None else wanted[0], named))
        for node, value in facts.observed(gpus).items()
        if value.vendor == "nvidia"
        for gpu in value.gpus
    ]


def _is_used(gpu: Gpu, device_count: int, wanted: int | None, named: tuple[str, ...]) -> bool:
    if named:
        return any(name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name)) for name in named)
    return wanted is None or wanted >= device_count


def visible_devices(job: Job) -> tuple[str, ...]:
    """Return the devices in the job's CUDA_VISIBLE_DEVICES, by index or id; empty if unset or if launches differ."""
    visible = {known_text(job, "env.CUDA_VISIBLE_DEVICES", scope) or "" for scope in scopes(job)}
    names = [name.strip() for name in visible.pop().split(",")] if len(visible) == 1 else []
    return tuple(names) if names and all(name.isdecimal() or name.startswith("GPU-") for name in names) else ()


def differing_devices(devices: Sequence[NodeGpu], value: Callable[[Gpu], T | None]) -> Iterator[tuple[NodeGpu, T, T]]:
    """Yield each device whose value differs from that of most of its model: the device and both values."""
    counts = _counted_gpus(devices, value)
    usual = _majorities({model: counter for model, counter in counts.items() if len(counter) > 1})
    for item in devices if usual else ():
        current = value(item.gpu)
        if current is not None and item.gpu.name in usual and current != usual[item.gpu.name]:
            yield item, current, usual[item.gpu.name]


def most_common_by_model(devices: Sequence[NodeGpu], value: Callable[[Gpu], T | None]) -> dict[str, T]:
    """Return, for each model, the value that more than half of its devices have, if there is one."""
    return _majorities(_counted_gpus(devices, value))


def _counted_gpus(devices: Sequence[NodeGpu], value: Callable[[Gpu], T | None]) -> dict[str, dict[T, int]]:
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
    """Yield faults for devices that have one of the fields `needs`, `unknown` for others, and `passed` for healthy
    ones.
    """
    if not gpu_claims(job):
        yield not_applicable(subject, "nothing in the job requests GPUs")
        return
    yield from _unexamined_verdicts(facts, subject)
    node_devices = all_devices(job, facts)
    judged = [item for item in node_devices if any(getattr(item.gpu, name) is not None for name in needs)]
    yield from _unreadable_verdicts(node_devices, subject, needs)
    faults = list(find_faults(judged))
    yield from findings(job, faults)
    faulty = {(fault.at.node, fault.at.gpu.index) for fault in faults}
    well = [item.node for item in judged if not item.gpu.problem]
    if faulty:
        sound = (item for item in judged if not item.gpu.problem)
        well = [item.node for item in sound if (item.node, item.gpu.index) not in faulty]
    if well:
        yield passed(f"{subject} of {len(well)} GPUs on {len(set(well))} nodes")
    elif node_devices and not judged and not any(item.gpu.problem or item.gpu.unread for item in node_devices):
        yield not_applicable(subject, "no GPU on these nodes reports this value")


def findings(job: Job, faults: Iterable[Fault]) -> Iterator[Verdict]:
    """Yield one finding per kind; it is at most a warning if all its devices may be unused by the job."""
    groups = grouped(((fault.kind, fault.at.used), fault) for fault in faults)
    for (kind, used), members in groups.items():
        first = members[0]
        nodes = tuple(dict.fromkeys(fault.at.node for fault in members))
        other = (
            "does not select this GPU"
            if visible_devices(job)
            else "uses fewer GPUs than the node has and may not use this one"
        )
        spare = "" if used else f"; the job {other}"
        milder = not used and first.severity in (None, Severity.ERROR)
        yield failed(
            kind if used else f"{kind} (unused GPUs)",
            f"{first.summary}: {fold((f'{fault.at.label} {fault.observed}' for fault in members), 4)}{spare}",
            at=Evidence("NVML", f"{first.at.label}: {first.observed}", first.expected, first.command, first.at.node),
            also=gpu_claims(job),
            nodes=nodes,
            remedy=first.remedy.format(nodes=fold(nodes), index=first.at.gpu.index, node=first.at.node),
            severity=Severity.WARNING if milder else first.severity,
            confidence=Confidence.MEDIUM if milder else first.confidence,
            run=_commands(members),
        )


def _commands(faults: Iterable[Fault]) -> list[Command]:
    """Return the commands for these faults; equal lines are listed once for all nodes."""
    nodes: dict[str, dict[str, None]] = {}
    for fault in faults:
        if fault.run is not None:
            nodes.setdefault(fault.run.line, {})[fault.at.node] = None
    return [Command(line, tuple(names)) for line, names in nodes.items()]


def _unexamined_verdicts(facts: Facts, subject: str) -> Iterator[Verdict]:
    missing: dict[str, list[str]] = {}
    for row in facts.each(gpus):
        if isinstance(row.fact, Unavailable):
            missing.setdefault(row.fact.reason, []).append(row.node)
        elif row.fact.value.problem:
            missing.setdefault("blocked by GPU011: its driver does not respond", []).append(row.node)
        elif row.fact.value.vendor != "nvidia":
            missing.setdefault("for AMD GPUs only their number and model are checked", []).append(row.node)
        elif not row.fact.value.gpus:
            missing.setdefault("blocked by GPU011: it has no visible GPU", []).append(row.node)
    for reason, nodes in missing.items():
        yield unknown(f"{subject} on {fold(nodes)}", reason)


def _unreadable_verdicts(node_devices: Iterable[NodeGpu], subject: str, needs: tuple[str, ...]) -> Iterator[Verdict]:
    missing: dict[str, list[str]] = {}
    for item in node_devices:
        if not item.gpu.problem and not item.gpu.unread:
            continue
        reasons = {item.gpu.unread[name] for name in needs if name in item.gpu.unread}
        if item.gpu.problem and any(getattr(item.gpu, name) is None for name in needs):
            reasons.add(item.gpu.problem)
        for reason in sorted(reasons):
            missing.setdefault(reason, []).append(f"{item.node} GPU {item.gpu.index}")
    for reason, devices in missing.items():
        yield unknown(f"{subject} of {fold(devices, 4)}", reason)


plan_gpus = on_every_node(gpus, needed_by=gpu_claims, required=True, deadline_s=DEADLINE_S)


def runs_without_gpus(job: Job, facts: Facts) -> bool:
    """Return whether the job uses GPUs only if present, and every node certainly has neither GPU nor driver."""
    backend, claims = asked_backend(job)
    if backend == "nccl" or any(claim.quantity != "backend" for claim in (*claims, *gpu_claims(job))):
        return False
    rows = list(facts.each(gpus))
    return bool(rows) and all(
        isinstance(row.fact, Observed) and row.fact.value.problem == "no-library" and not row.fact.value.gpus
        for row in rows
    )


#: The command that lists the devices, by vendor.
_LIST = {"nvidia": "nvidia-smi -L", "amd": "rocm-smi --showproductname"}


#: A check that judges what NVML reports.
gpu_check = functools.partial(check, plan=plan_gpus, probes=(gpus,))


@gpu_check("GPU011", "gpu-count-short", severity=Severity.ERROR)
@only_if(requests_gpus, "GPUs", "nothing in the job requests GPUs")
def gpu_count(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node has as many working GPUs as the job uses on it.

    What it checks: the devices that NVML lists, compared with the job's GPUs (or ranks) per node.

    Why it matters: ranks without a GPU fail with an invalid device ordinal while the other nodes wait for them.

    Example: eight ranks per node, and one GPU of node3 has fallen off the bus.

    Fix: replace the node, or reduce the number everywhere.

    Known limits: a scheduler may show the agent other devices than the job; MIG instances count as their GPU. A GPU or
    driver that does not respond in time is `unknown`, not missing: GPU024 names it. AMD's GPUs are counted from the
    kernel's list.
    """
    needed = gpu_claims(job)
    if runs_without_gpus(job, facts):
        yield not_applicable("GPUs", "no node has a GPU, and the job falls back to another backend")
        return
    needed_count = expected_gpus(job)
    broken: dict[str, dict[str, Gpus]] = {}
    short: dict[int, list[str]] = {}
    for row in facts.each(gpus):
        if isinstance(row.fact, Unavailable):
            yield unknown(row.node, f"its GPUs are unknown: {row.fact.reason}", nodes=(row.node,), required=True)
            continue
        value = row.fact.value
        working = sum(not item.problem for item in value.gpus)
        silent = [item for item in value.gpus if item.problem_kind == "timeout"]
        if value.problem == "timeout":
            # A driver that must wake all devices first may be slow without being broken.
            reason = f"its NVIDIA driver does not respond: {value.detail}"
            yield unknown(row.node, reason, nodes=(row.node,), required=True)
        elif needed_count is not None and silent and working < needed_count[0] <= working + len(silent):
            which = fold((f"GPU {item.index}: {item.problem}" for item in silent), 3)
            yield unknown(row.node, f"not all of its GPUs respond ({which})", nodes=(row.node,), required=True)
        elif value.problem:
            broken.setdefault(value.problem, {})[row.node] = value
        elif working == 0 or (needed_count is not None and working < needed_count[0]):
            short.setdefault(working, []).append(row.node)
        else:
            yield passed(row.node)
    for problem, broken_nodes in broken.items():
        unknown_problem = {
            "what": f"reports {problem!r} for its NVIDIA driver",
            "remedy": "Run `nvidia-smi` on the node.",
        }
        known = table("gpu_driver")["driver"].get(problem, unknown_problem)
        node, value = next(iter(broken_nodes.items()))
        yield failed(
            f"driver: {problem}",
            f"{fold(broken_nodes)} {known['what']} ({value.detail}), but the job needs GPUs",
            at=Evidence("NVML", value.detail, "a driver that responds", "nvidia-smi", node),
            also=needed,
            nodes=tuple(broken_nodes),
            remedy=known["remedy"].format(nodes=fold(broken_nodes)),
            run=(root_command("modprobe", "nvidia", on=broken_nodes),) if problem == "no-driver" else (),
        )
    observed = facts.observed(gpus)
    for working, nodes in sorted(short.items()):
        lost = [f"{item.index}: {item.problem}" for item in observed[nodes[0]].gpus if item.problem]
        because = f" (GPU {fold(lost, 3)})" if lost else ""
        count = needed_count[0] if needed_count else 1
        listing = _LIST.get(observed[nodes[0]].vendor, "nvidia-smi -L")
        yield failed(
            f"{working} GPUs",
            f"{fold(nodes)} {'has' if len(nodes) == 1 else 'have'} {working} of the {count} GPUs that the job uses "
            f"on each node{because}",
            at=Evidence("devices", f"{working} GPUs{because}", f"{count} GPUs", listing, nodes[0]),
            also=needed_count[1] if needed_count else needed,
            nodes=nodes,
            remedy=f"Replace {fold(nodes)}, reset the lost GPU, or use only {working} GPUs on every node.",
        )


@gpu_check("GPU012", "gpu-model-differs", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@only_if(requests_gpus, "GPU models", "nothing in the job requests GPUs")
def gpu_model(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """All nodes have GPUs of the same model and memory size.

    What it checks: model and memory of every GPU on every node.

    Why it matters: the slowest GPU sets the pace of all, and the smallest memory the batch size.

    Example: seven nodes with 80 GB cards and one with 40 GB: that one runs out of memory at the first step.

    Fix: request one type of node from the scheduler.

    Known limits: clocks and connections of GPUs are not compared.
    """
    blind = tuple(missing_facts(facts, gpus, "GPU models"))
    yield from blind
    models = {
        node: fold(sorted({_model(item.name, item.memory_bytes) for item in value.gpus if not item.problem}))
        for node, value in facts.observed(gpus).items()
        if value.gpus
    }
    division = split(models)
    if division is None:
        if not blind:
            yield unknown("GPU models", "no node has a visible GPU (see GPU011)")
    elif not division.odd:
        yield passed(f"{division.common} on {len(models)} nodes")
    else:
        node, model = division.first_odd
        yield failed(
            "GPU models",
            f"GPUs differ between nodes: {division.description}",
            at=Evidence("NVML", model, division.common, "nvidia-smi -L", node),
            also=gpu_claims(job),
            nodes=tuple(division.odd),
            remedy="Request nodes of the same type, or choose a batch size that fits the smallest GPU.",
        )


def _model(name: str, memory_bytes: int | None) -> str:
    return f"{name} {memory_bytes / 2**30:.0f} GiB" if memory_bytes else name


@gpu_check("GPU027", "gpu-peers-differ", severity=Severity.WARNING, confidence=Confidence.MEDIUM)
@only_if(requests_gpus, "peer access", "nothing in the job requests GPUs")
def gpu_peers_differ(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """The GPUs are connected in the same way on all nodes.

    What it checks: for each pair of GPUs on a node, whether one may read the other's memory, and the path between them,
    compared with the same pair on most nodes with the same GPUs.

    Why it matters: if peers may not read each other's memory, NCCL copies through host memory, and all nodes wait.

    Example: on node3 the driver was loaded with peer access disabled.

    Fix: compare `nvidia-smi topo -p2p r` and `nvidia-smi topo -m` with those of a healthy node.

    Known limits: a different order of the cards shows as a different topology, so that is only noted. Access itself is
    not tested. A single node, or nodes without a majority, cannot be compared.
    """
    yield from missing_facts(facts, gpus, "peer access")
    reads: dict[str, dict[str, tuple[int, ...]]] = {}
    distances: dict[str, dict[str, tuple[int, ...]]] = {}
    for node, value in facts.observed(gpus).items():
        kind = f"{len(value.gpus)} {fold(sorted({card.name for card in value.gpus}))}"
        for listed, found in ((value.peer_reads, reads), (value.peer_distances, distances)):
            if listed is not None:
                found.setdefault(kind, {})[node] = tuple(listed)
    odd = False
    peer_access = table("gpu_driver")["peer_access"]
    for same in reads.values():
        verdict = _odd_pairs_finding(
            "peer access", same, lambda value: peer_access.get(str(value), str(value)), "-p2p r", job
        )
        odd = odd or verdict is not None
        if verdict is not None:
            yield verdict
    for same in distances.values():
        verdict = _odd_pairs_finding("topology", same, lambda value: f"level {value}", "-m", job)
        odd = odd or verdict is not None
        if verdict is not None:
            yield replace(verdict, severity=Severity.INFO)
    reporting_nodes = {node for same in reads.values() for node in same}
    if reporting_nodes and not odd:
        yield passed(f"peer access on {len(reporting_nodes)} nodes")
    elif not reporting_nodes and not any(isinstance(row.fact, Unavailable) for row in facts.each(gpus)):
        yield unknown(
            "peer access",
            "no node reports peer access: it has a single GPU, a faulty GPU (see GPU011) or an old driver",
        )


def _odd_pairs_finding(
    quantity: str, values: dict[str, tuple[int, ...]], describe: Callable[[int], str], option: str, job: Job
) -> Verdict | None:
    divided = split(values)
    if divided is None or not divided.odd or not divided.has_majority:
        return None
    node, mine = divided.first_odd
    count = round((1 + (1 + 8 * len(mine)) ** 0.5) / 2)
    pairs = [(item, other) for item in range(count) for other in range(item + 1, count)]
    shown = fold(
        (
            f"GPU {item} and {other}: {describe(own)}, elsewhere {describe(usual)}"
            for (item, other), own, usual in zip(pairs, mine, divided.common, strict=False)
            if own != usual
        ),
        3,
    )
    return failed(
        quantity,
        f"{quantity} between GPUs differs on {fold(divided.odd)} ({node} {shown})",
        at=Evidence("NVML", f"{node} {shown}", "as on the other nodes", f"nvidia-smi topo {option}", node),
        also=gpu_claims(job),
        nodes=tuple(divided.odd),
        remedy=f"Compare the output of `nvidia-smi topo {option}` on {fold(divided.odd)} and {divided.agreeing[0]}.",
    )
