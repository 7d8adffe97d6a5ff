"""Charts of parameter servers: their nodes, the bytes each will hold, and the bytes it moved in the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from preflight.model.charts import Bar, Bars, Layout, Piece, Place
from preflight.model.job import Job
from preflight.model.recording import Facts, Fleet
from preflight.plugins.claim_text import counted
from preflight_checks.requirements import Endpoint, has_parameter_servers, nodes_share_machine
from preflight_checks.servers import SERVER, layout, shares
from reference_trainer.ps.partition import overloaded

#: The row of processes whose address belongs to no node, or to several.
NOWHERE = "no known node"
_UNPLACED = "its address belongs to no node or to several nodes"
_UNSIZED = "the files do not give the parameter sizes"


@dataclass(frozen=True, slots=True)
class _Part:
    """One server, worker or trainer, and its node (empty if unknown)."""

    label: str
    kind: str
    node: str


def placement(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Layout]:
    """Yield the servers and workers of each node, and the bytes that each server will hold."""
    parts, source = _parts(job, fleet, facts)
    if not parts:
        return
    servers = sum(part.kind == SERVER for part in parts)
    bytes_by_server, source_text = _held_bytes(job, facts, servers)
    sizes = iter(bytes_by_server)
    pieces: dict[str, list[Piece]] = {}
    for part in parts:
        size = next(sizes, None) if part.kind == SERVER else None
        value = None if size is None else float(size)
        reason = _UNPLACED if not part.node else _UNSIZED if part.kind == SERVER and value is None else ""
        pieces.setdefault(part.node, []).append(Piece(part.label, part.kind, value, reason))
    order = {node.name: number for number, node in enumerate(fleet.nodes)}
    nodes = sorted(pieces, key=lambda name: order.get(name, len(order)))
    note = f"Where {counted(servers, 'server')} and {counted(len(parts) - servers, 'worker')} are, {source}; "
    note += f"bytes are {source_text}." if bytes_by_server else f"{_UNSIZED}."
    places = tuple(Place(name or NOWHERE, tuple(pieces[name])) for name in nodes)
    yield Layout("servers.placement", "Placement of servers and workers", note, "bytes", places)


def _parts(job: Job, fleet: Fleet, facts: Facts) -> tuple[Sequence[_Part], str]:
    """Return all processes, servers first, and their source: the nodes' environment or the plan of a training run."""
    if not has_parameter_servers(job) or not fleet.nodes:
        return (), ""
    # Importing the training run takes long, here and below, and most jobs have no servers.
    from preflight_checks.smoke.server_run import processes

    placement = layout(job, fleet, facts)
    if placement.servers and not nodes_share_machine(fleet):

        def placed(endpoints: Sequence[Endpoint], kind: str) -> list[_Part]:
            return [
                _Part(f"{kind} {n}", kind, placement.node_of.get(endpoint_name, ""))
                for n, endpoint_name in enumerate(endpoints)
            ]

        return [
            *placed(placement.servers, SERVER),
            *placed(placement.trainers, "trainer"),
        ], "according to the node addresses"
    started = processes(job, fleet, facts)
    if isinstance(started, str):
        return (), ""
    return [_Part(f"{p.kind} {p.index}", p.kind, p.node.name) for p in started], "as started by the training run"


def _held_bytes(job: Job, facts: Facts, servers: int) -> tuple[Sequence[int], str]:
    """Return the bytes that each server holds, in server order, and their source; empty if unknown."""
    expected = shares(job, servers)
    if expected is not None:
        kept = f", with {counted(expected.slots, 'optimizer value')} for each parameter" if expected.slots else ""
        return expected.held, f"what a server will hold, according to the sizes in the files{kept}"
    from preflight_checks.smoke.server_run import server_run_of

    held_bytes = {
        report.index: report.dense_bytes + report.table_bytes for _, report in server_run_of(job, facts).servers
    }
    if set(held_bytes) != set(range(servers)) or not any(held_bytes.values()):
        return (), ""
    return [
        held_bytes[index] for index in range(servers)
    ], "what each server held in the training run with a small model"


def holdings(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Bars]:
    """Yield one bar per server: the bytes that it will hold by the job's partitioning, or that it held in the run."""
    servers = [part for part in _parts(job, fleet, facts)[0] if part.kind == SERVER]
    bytes_by_server, source_text = _held_bytes(job, facts, len(servers)) if servers else ((), "")
    if not bytes_by_server:
        return
    heavy = overloaded(bytes_by_server)
    bars = tuple(
        Bar(part.label, part.node or NOWHERE, float(own), index in heavy, "more than twice the mean" * (index in heavy))
        for index, (part, own) in enumerate(zip(servers, bytes_by_server, strict=True))
    )
    note = f"{source_text[0].upper()}{source_text[1:]}, for {counted(len(bars), 'server')}."
    yield Bars("servers.bytes", "Data held by each server", note, "bytes", bars)


def traffic(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Bars]:
    """Yield one bar per server of the training run: the bytes that it received and sent."""
    if not has_parameter_servers(job):
        return
    from preflight_checks.smoke.server_results import loads_of
    from preflight_checks.smoke.server_run import server_run_of

    run = server_run_of(job, facts)
    loads = loads_of(run) if run.complete else ()
    bars = tuple(
        Bar(
            f"server {load.index}",
            load.node,
            float(load.bytes_moved),
            load.uneven,
            f"it holds {load.parameter_share:.0%} of the parameters" if load.uneven else "",
        )
        for load in sorted(loads, key=lambda load: (load.index, load.node))
    )
    if bars:
        note = f"Bytes that {counted(len(bars), 'server')} of the training run received and sent."
        yield Bars("servers.traffic", "Data moved by each server", note, "bytes", bars)
