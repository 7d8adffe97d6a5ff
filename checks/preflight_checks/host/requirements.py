"""The user's requirements for every node: values (`--expect`), or the properties of one node (`--golden`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from preflight.model.findings import Evidence, Severity
from preflight.model.job import Claim, Job, Known
from preflight.model.recording import NONE, NUMBERS, VERSIONS, Facts, Fleet, NodeRecord, Requirement, parse_requirement
from preflight.plugins.authoring import Verdict, check, failed, not_applicable, passed, unknown
from preflight_checks.host.processors import MIN_MEMORY_SHARE
from preflight_checks.plans import GIB, combine_plans, on_every_node, table, version_of
from preflight_checks.probes.gpus import DEADLINE_S, Gpus, gpus
from preflight_checks.probes.machine import Machine, machine
from preflight_checks.probes.rdma import RdmaDevices, rdma

#: Properties that one probe reports; if all of them are missing, the probe did not answer.
_GPUS = ("gpus", "gpu", "driver")
_RDMA = ("rdma",)
_MACHINE = ("cpus", "memory", "kernel")
#: Sizes that differ by less are the same: each kernel and driver reserves another part of the memory for itself.
_SIZES = ("memory", "gpu-memory")


def properties(record: NodeRecord, facts: Facts) -> dict[str, str]:
    """Return the properties of a node by their names in `PROPERTIES`, without those that are unknown."""
    node = record.node.name
    found = {"python": record.python}
    for probe, read in _READERS:
        seen = facts.observed(probe).get(node)
        if seen is not None:
            found.update(read(seen))
    return {name: text for name, text in found.items() if text}


def _machine_properties(value: Machine) -> dict[str, str]:
    total = value.memory.total_bytes
    return {
        "os": value.system,
        "kernel": value.kernel,
        "processor": value.processor,
        "cpus": str(value.online_cpus or ""),
        "memory": f"{total / GIB:.1f}" if total else "",
    }


def _gpu_properties(value: Gpus) -> dict[str, str]:
    if value.problem in ("no-library", "no-driver") and not value.device_files and not value.kernel_driver:
        return {"gpus": "0", "gpu": NONE, "gpu-memory": "0", "driver": NONE, "cuda": NONE}
    if value.problem:
        return {}
    sizes = [card.memory_bytes for card in value.gpus if card.memory_bytes is not None]
    smallest = "" if len(sizes) < len(value.gpus) else f"{min(sizes, default=0) / GIB:.1f}"
    return {
        "gpus": str(len(value.gpus)),
        "gpu": _models(value),
        "gpu-memory": smallest,
        "driver": value.driver,
        "cuda": value.cuda_driver,
    }


def _models(value: Gpus) -> str:
    """Return the models of the GPUs, separated by commas; empty if one is unknown."""
    names = [card.name for card in value.gpus]
    return "" if not all(names) else ", ".join(dict.fromkeys(names)) or NONE


def _rdma_properties(value: RdmaDevices) -> dict[str, str]:
    if any(device.problem for device in value.devices):
        return {}
    ports = [port for device in value.devices for port in device.ports if port.active]
    rates = [port.rate_gbps for port in ports if port.rate_gbps is not None]
    slowest = "" if len(rates) < len(ports) else f"{min(rates, default=0):g}"
    return {"rdma": str(len(ports)), "rdma-rate": slowest}


_READERS: tuple[tuple[Callable[..., object], Callable[..., Mapping[str, str]]], ...] = (
    (machine, _machine_properties),
    (gpus, _gpu_properties),
    (rdma, _rdma_properties),
)


def _is_examination(job: Job, fleet: Fleet) -> bool:
    """Return whether nodes are examined without a job, so that the recording may serve as an example."""
    return bool(job.about("examines_nodes"))


@check(
    "NOD005",
    "node-differs-from-requirement",
    plan=combine_plans(on_every_node(machine, rdma), on_every_node(gpus, deadline_s=DEADLINE_S), when=_is_examination),
    severity=Severity.ERROR,
)
def node_differs(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Verdict]:
    """Every node has what the user requires of all nodes.

    What it checks: each requirement of `preflight nodes --expect`, and, with `--golden`, the properties of the golden
    node: number and model of GPUs, driver, system, kernel, processors, memory, RDMA ports.

    Why it matters: one node that was repaired with a smaller memory module, or missed an update, slows down or stops
    every job that is placed on it.

    Example: `--expect gpus=8`, and node17 has shown 7 since its last restart.

    Fix: repair the node, install the other nodes' image, or take it out of service.

    Known limits: only the properties that `preflight nodes --help` lists. Sizes of memory that differ by less than 5 %
    count as equal.
    """
    if not (job.about("node_requirement") or job.about("golden_node")):
        yield not_applicable("nodes", "no requirement for the nodes is configured")
        return
    known = {record.node.name: properties(record, facts) for record in fleet.records if not record.problem}
    requirements = [
        (parse_requirement(str(claim.value.value)), claim)
        for claim in job.about("node_requirement")
        if isinstance(claim.value, Known)
    ]
    for claim in job.about("golden_node"):
        yield from _add_golden_requirements(claim, known, requirements)
    for requirement, claim in requirements:
        for node, values in known.items():
            yield _requirement_verdict(requirement, claim, node, values.get(requirement.name, ""))


def _add_golden_requirements(
    claim: Claim, known: Mapping[str, Mapping[str, str]], wanted: list[tuple[Requirement, Claim]]
) -> Iterator[Verdict]:
    name = str(claim.value.value) if isinstance(claim.value, Known) else ""
    if name not in known:
        yield unknown(f"golden node {name}", f"the golden node {name} was not examined", required=True)
        return
    stated = {requirement.name for requirement, _ in wanted}
    for group in (_GPUS, _RDMA, _MACHINE):
        if not set(group) & {*known[name], *stated}:
            yield unknown(f"golden node {name}", f"{group[0]} of the golden node {name} is unknown", required=True)
    for prop, value in known[name].items():
        if prop not in stated:
            wanted.append((Requirement(prop, "==", value), claim))


def _requirement_verdict(requirement: Requirement, claim: Claim, node: str, value: str) -> Verdict:
    subject = f"{requirement.name} of {node}"
    if not value:
        return unknown(subject, f"{requirement.name} of {node} is unknown", nodes=(node,), required=True)
    if is_met(requirement, value):
        return passed(subject)
    least = "at least " if requirement.comparison == ">=" else ""
    return failed(
        subject,
        f"{requirement.name} of {node} is {value}, but `{claim.spelling}` requires {least}{requirement.value}",
        at=Evidence(
            requirement.name, value, least + requirement.value, table("property_commands")[requirement.name], node
        ),
        also=(claim,),
        remedy=f"Repair {node} or take it out of service, or correct `{claim.spelling}`.",
    )


def is_met(requirement: Requirement, value: str) -> bool:
    """Return whether a node with this value meets the requirement."""
    if requirement.name in NUMBERS:
        wanted, found = float(requirement.value), float(value)
        slack = MIN_MEMORY_SHARE if requirement.name in _SIZES else 1.0
        return found >= slack * wanted and (requirement.comparison == ">=" or wanted >= slack * found)
    if requirement.comparison == ">=":
        return version_of(value) >= version_of(requirement.value)
    if requirement.comparison == "==" or value == requirement.value:
        return value == requirement.value
    if requirement.name in VERSIONS:
        return value.startswith((f"{requirement.value}.", f"{requirement.value}-"))
    parts = value.split(", ") if requirement.name == "gpu" else [value]
    return all(requirement.value.casefold() in part.casefold() for part in parts)
