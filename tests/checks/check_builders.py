"""Jobs, fleets, GPUs and facts for tests of checks without a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from preflight.model.findings import Status
from preflight.model.job import Claim, Job, Known, Launch, OneOf, Plain, Scope, Span, Strength, Unresolved
from preflight.model.recording import FactRecord, Facts, Fleet, Node, NodeRecord, Unavailable
from preflight.model.requests import Request, probe_name
from preflight.plugins.authoring import Check, Verdict
from preflight_checks.probes.gpus import Gpu, Gpus, gpus

LAUNCH = Launch("train.sh:9", "torchrun", Span("train.sh", 9, 1, 9, 20, "torchrun train.py"))


def claim(quantity: str, value: Plain | OneOf | Unresolved, spelling: str = "", scope: Scope | None = None) -> Claim:
    """A claim of the launch about `quantity`."""
    span = Span("train.sh", 9, 1, 9, 20, spelling or f"{quantity}={value}")
    stated = value if isinstance(value, (OneOf, Unresolved)) else Known(value)
    return Claim(
        quantity,
        stated,
        span,
        spelling or f"{quantity}={value}",
        "test",
        scope or LAUNCH.scope,
        Strength.FLAG,
    )


def job(claims: Iterable[Claim] = (), **values: Any) -> Job:
    """A job with one launch; variables are given as `env_NAME`."""
    named = [claim(k.replace("env_", "env.", 1) if k.startswith("env_") else k, v) for k, v in values.items()]
    return Job("train", launches=(LAUNCH,), claims=(*named, *claims))


def fleet(count: int = 4, **problems: str) -> Fleet:
    """node0 ... with those named in `problems` not reached."""
    return Fleet(tuple(NodeRecord(Node(f"node{i}", i), problem=problems.get(f"node{i}", "")) for i in range(count)))


def local_fleet(count: int) -> Fleet:
    """local0 ... as with `--on local`: processes of this machine, with names that do not resolve."""
    return Fleet(tuple(NodeRecord(Node(f"local{i}", i, "localhost")) for i in range(count)))


def fact(
    probe: Callable[..., Any],
    node: str,
    value: Any,
    *,
    params: Mapping[str, Any] | None = None,
    peers: tuple[str, ...] = (),
    required: bool = True,
    context: bool = False,
) -> FactRecord:
    """One observation; `value` may be an Unavailable."""
    request = Request(probe_name(probe), node, params or {}, peers=peers, required=required, context=context)
    if isinstance(value, Unavailable):
        return FactRecord(request, unavailable=value)
    # Plain JSON values, as an agent sends them.
    return FactRecord(request, asdict(value))


def facts(*records: FactRecord) -> Facts:
    """These records as facts."""
    return Facts(tuple(records))


def judge(check: Check, job: Job, fleet: Fleet, facts: Facts) -> list[Verdict]:
    """All verdicts of a check; a finding that cannot be built fails here."""
    return list(check.judge(job, fleet, facts))


def plan(check: Check, job: Job, fleet: Fleet, facts: Facts | None = None) -> list[Request]:
    """All requests of a check; each probe must be declared by the check."""
    requests = list(check.plan(job, fleet, facts or Facts()))
    asked = {name for request in requests for name in (request.probe, request.listen) if name}
    assert asked <= {probe_name(probe) for probe in check.probes}
    return requests


def one(verdicts: list[Verdict], status: Status) -> Verdict:
    """The only verdict with this status."""
    found = [item for item in verdicts if item.status is status]
    assert len(found) == 1, [(item.status.value, item.subject, item.message) for item in verdicts]
    return found[0]


def statuses(verdicts: list[Verdict]) -> set[str]:
    """The different statuses among the verdicts."""
    return {item.status.value for item in verdicts}


TIMEOUT = Unavailable("timeout", "no answer within 5 s")


# GPUs of nodes for tests: healthy ones, and ones with a chosen fault.


JOB = {"backend": "nccl", "gpus_per_node": 2, "processes_per_node": 2}
H100 = "NVIDIA H100 80GB HBM3"


def healthy(index: int, node: str = "node0") -> Gpu:
    """A healthy H100."""
    return Gpu(
        index,
        H100,
        f"GPU-{node}-{index}",
        80 << 30,
        "9.0",
        pci=f"0000:1{index}:00.0",
        memory_used_bytes=600 << 20,
        ecc_enabled=True,
        ecc_uncorrected=0,
        ecc_uncorrected_ever=1,
        rows_remap_pending=False,
        rows_remap_failed=False,
        pages_retired=0,
        clock_reasons=1,
        clock_mhz=345,
        clock_max_mhz=1980,
        clock_application_mhz=1980,
        power_w=70.0,
        power_limit_w=700.0,
        temperature_c=30,
        temperature_slowdown_c=87,
        pcie_width=16,
        pcie_width_max=16,
        pcie_generation=1,
        pcie_generation_max=5,
        nvlinks=[True] * 18,
        mig_enabled=False,
        mig_pending=False,
        persistence=True,
        compute_mode=0,
        processes=[],
        recovery_action=0,
        vbios="96.00",
        gsp_firmware="550.54.15",
    )


def node_with(node: str, *cards: Gpu, count: int = 2, **more: Any) -> FactRecord:
    """The fact of a node with `count` cards: those in `cards` by their index, the others healthy."""
    mine = {card.index: card for card in cards}
    listed = [mine.get(index, healthy(index, node)) for index in range(count)]
    values = {"driver": "550.54.15", "kernel_driver": "550.54.15", "cuda_driver": "12.4", **more}
    return fact(gpus, node, Gpus(gpus=listed, **values))


def faulty(index: int, node: str, **changes: Any) -> Gpu:
    """A healthy card with these values replaced."""
    return replace(healthy(index, node), **changes)
