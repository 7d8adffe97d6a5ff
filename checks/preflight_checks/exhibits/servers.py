"""Parameter servers for the eye: who is on which node, what each server will hold, and what it moved in the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from preflight.exhibit import Bar, Bars, Layout, Piece, Place
from preflight.job import Job
from preflight.lazy.dataclasses import dataclass
from preflight.recording import Facts, Fleet
from preflight_checks.demands import Endpoint, stand_ins
from preflight_checks.exhibits.telling import many
from preflight_checks.servers.server_layout import SERVER, is_ps, layout, shares
from reference_trainer.ps.sharding import overloaded

#: Where those stand whose address is that of no node, or of several.
NOWHERE = "no known node"
_UNPLACED = "its address is that of no node, or of several"
_UNSIZED = "the files do not spell out the sizes of the parameters"


@dataclass(frozen=True, slots=True)
class _Part:
    """One server, worker or trainer, and its node; empty where that is not known."""

    label: str
    kind: str
    node: str


def placement(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Layout]:
    """Which servers and workers are on which node, and the bytes that each server will hold."""
    parts, source = _parts(job, fleet, facts)
    if not parts:
        return
    servers = sum(part.kind == SERVER for part in parts)
    held, said = _held(job, facts, servers)
    sizes = iter(held)
    pieces: dict[str, list[Piece]] = {}
    for part in parts:
        size = next(sizes, None) if part.kind == SERVER else None
        value = None if size is None else float(size)
        why = _UNPLACED if not part.node else _UNSIZED if part.kind == SERVER and value is None else ""
        pieces.setdefault(part.node, []).append(Piece(part.label, part.kind, value, why))
    order = {node.name: number for number, node in enumerate(fleet.nodes)}
    nodes = sorted(pieces, key=lambda name: order.get(name, len(order)))
    note = f"Where {many(servers, 'server')} and {many(len(parts) - servers, 'worker')} are, {source}; "
    note += f"bytes are {said}." if held else f"{_UNSIZED}."
    places = tuple(Place(name or NOWHERE, tuple(pieces[name])) for name in nodes)
    yield Layout("servers.placement", "Places of servers and workers", note, "bytes", places)


def _parts(job: Job, fleet: Fleet, facts: Facts) -> tuple[Sequence[_Part], str]:
    """Servers first, and who says it: the endpoints as the nodes know them, or what a training run would start."""
    if not is_ps(job) or not fleet.nodes:
        return (), ""
    # What is about the training run takes long to import, here and below; most jobs have no servers.
    from preflight_checks.smoke.server_processes import processes

    found = layout(job, fleet, facts)
    if found.servers and not stand_ins(fleet):

        def placed(endpoints: Sequence[Endpoint], kind: str) -> list[_Part]:
            return [_Part(f"{kind} {n}", kind, found.node_of.get(one, "")) for n, one in enumerate(endpoints)]

        return [*placed(found.servers, SERVER), *placed(found.trainers, "trainer")], "as the nodes know their addresses"
    started = processes(job, fleet, facts)
    if isinstance(started, str):
        return (), ""
    return [_Part(f"{p.kind} {p.index}", p.kind, p.node.name) for p in started], "as a training run starts them"


def _held(job: Job, facts: Facts, servers: int) -> tuple[Sequence[int], str]:
    """What each server holds, in their order, and whose bytes these are; nothing where neither files nor a run tell."""
    expected = shares(job, servers)
    if expected is not None:
        kept = f", with {many(expected.slots, 'further value')} of the optimizer for each" if expected.slots else ""
        return expected.held, f"what a server will hold, by the sizes in the files{kept}"
    from preflight_checks.smoke.server_run import server_run_of

    told = {report.index: report.dense_bytes + report.table_bytes for _, report in server_run_of(job, facts).servers}
    if set(told) != set(range(servers)) or not any(told.values()):
        return (), ""
    return [told[index] for index in range(servers)], "what a server of the training run held of its small model"


def holdings(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Bars]:
    """A bar for each server: the bytes that it will hold, as the job deals its parameters, or held in the run."""
    servers = [part for part in _parts(job, fleet, facts)[0] if part.kind == SERVER]
    held, said = _held(job, facts, len(servers)) if servers else ((), "")
    if not held:
        return
    heavy = overloaded(held)
    bars = tuple(
        Bar(
            part.label, part.node or NOWHERE, float(mine), index in heavy, "more than twice the mean" * (index in heavy)
        )
        for index, (part, mine) in enumerate(zip(servers, held, strict=True))
    )
    note = f"{said[0].upper()}{said[1:]}, for each of {many(len(bars), 'server')}."
    yield Bars("servers.bytes", "What servers hold", note, "bytes", bars)


def traffic(job: Job, fleet: Fleet, facts: Facts) -> Iterator[Bars]:
    """A bar for each server of the training run: the bytes that it took in and gave out."""
    if not is_ps(job):
        return
    from preflight_checks.smoke.server_load import loads_of
    from preflight_checks.smoke.server_run import server_run_of

    run = server_run_of(job, facts)
    loads = loads_of(run) if run.complete else ()
    bars = tuple(
        Bar(
            f"server {load.index}",
            load.node,
            float(load.moved),
            load.uneven,
            f"it holds {load.due:.0%} of the parameters" if load.uneven else "",
        )
        for load in sorted(loads, key=lambda load: (load.index, load.node))
    )
    if bars:
        note = f"Bytes that {many(len(bars), 'server')} of the training run took in and gave out."
        yield Bars("servers.traffic", "What servers moved", note, "bytes", bars)
