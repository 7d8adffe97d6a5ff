"""Recordings of many nodes, made from the facts of a few real ones: `python -m benchmarks.fleets OUT N [RECORDING]`.

Every node gets the facts of a real one, but its own name, addresses, times and measurements, so that hardly two values
are equal; a few nodes are odd. The links are those that the checks plan for this number of nodes.
"""

from __future__ import annotations

import ipaddress
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from preflight.model.recording import FactRecord, Facts, Fleet, NodeRecord, Recording, Unavailable
from preflight.model.recording_io import load, save
from preflight.model.requests import Request
from preflight.plugins import registry

_NETWORKS = (ipaddress.IPv4Network("10.77.0.0/16"), ipaddress.IPv4Network("10.78.0.0/16"))
_ADDRESS = re.compile(r"\b10\.7[78]\.0\.(\d+)\b")
#: One node in this many is odd, in one of several ways in turn.
ODD_EVERY = 1999
#: Facts of one wave lead to further requests in the next wave.
_WAVES = 4


def real(folder: Path) -> Recording:
    """The recording of a real check of four virtual nodes and their links. Raises ClusterError where these are not
    possible.
    """
    from tests.cluster import Cluster
    from tests.end_to_end.head_command import ROOT, command, give_shards, write_job

    with Cluster(4) as cluster:
        job = write_job(folder)
        give_shards(cluster.nodes)
        done = cluster.head.run(command(job, "--until", "link"), cwd=str(ROOT), timeout=100)
    if done.returncode not in (0, 3):
        raise RuntimeError(f"the check of the four model nodes failed:\n{done.stdout}{done.stderr}")
    return load((folder / "recording.json").read_bytes())


def grown(recording: Recording, count: int) -> Recording:
    """The same recording for `count` nodes. The first node, which has the job's store, stays the first."""
    (linked_s,) = [stage.started_s for stage in recording.stages if stage.name == "link"] or [float("inf")]
    of_nodes = frozenset(fact.request.key for fact in recording.facts if fact.finished_s <= linked_s)
    makers = [_Maker(recording, index, count, of_nodes) for index in range(count)]
    nodes = tuple(maker.node() for maker in makers)
    facts = [fact for maker in makers for fact in maker.facts()]
    facts.extend(_links(recording, Fleet(nodes), tuple(facts), makers))
    return replace(recording, nodes=nodes, facts=tuple(facts), events=())


class _Maker:
    """Makes one node from a node of the recording: the first from the first, the others from the others in turn."""

    def __init__(self, recording: Recording, index: int, count: int, of_nodes: frozenset[str]) -> None:
        self.recording = recording
        self._of_nodes = of_nodes
        self.index = index
        others = len(recording.nodes) - 1
        self.number = 0 if index == 0 else 1 + (index - 1) % others
        self.model = recording.nodes[self.number].node.name
        # The job's files contain the master's name, so it is kept.
        self.name = self.model if index == 0 else f"worker{index:0{len(str(count))}d}"
        self.odd = index // ODD_EVERY if index and index % ODD_EVERY == 0 else 0
        self._last = f"{self.number + 1}"
        self.addresses = [str(network[index + 1]) for network in _NETWORKS]
        self._word = re.compile(rf"\b{re.escape(self.model)}\b")

    def node(self) -> NodeRecord:
        record = self.recording.nodes[self.number]
        node = replace(record.node, name=self.name, index=self.index, address=self.name)
        if self.odd and self.odd % 4 == 0:
            return NodeRecord(node, f"{self.name}: no agent within 8 s", "timeout")
        offset = (record.clock_offset_s or 0.0) + (self.index % 17) * 1e-5
        return replace(record, node=node, host=self.name, clock_offset_s=offset)

    def renamed(self, text: str) -> str:
        """The model node's JSON with this node's name and addresses."""

        def rename_match(match: re.Match[str]) -> str:
            return self.addresses[match[0].startswith("10.78.")] if match[1] == self._last else match[0]

        return _ADDRESS.sub(rename_match, self._word.sub(self.name, text))

    def facts(self) -> Iterator[FactRecord]:
        for fact in self.recording.facts:
            if fact.request.node == self.model and fact.request.key in self._of_nodes:
                yield self._fact(fact)

    def _fact(self, fact: FactRecord) -> FactRecord:
        if self.odd and self.odd % 4 == 0:
            gone = Unavailable("unreachable", f"{self.name} gave no agent")
            return replace(fact, request=replace(fact.request, node=self.name), value=None, unavailable=gone)
        value = self.measured(json.loads(self.renamed(json.dumps(fact.value))))
        # Requests that contain the node's name are renamed; all others are the same for all nodes.
        params = json.loads(self.renamed(json.dumps(fact.request.params)))
        same = fact.request.params if params == fact.request.params else params
        request = replace(fact.request, node=self.name, params=same)
        later = self.index * 1e-4
        return replace(
            fact, request=request, value=value, started_s=fact.started_s + later, finished_s=fact.finished_s + later
        )

    def measured(self, value: Any, name: str = "") -> Any:
        """The value with this node's own measurements, and its oddities."""
        if isinstance(value, dict):
            return {key: self.measured(item, key) for key, item in value.items()}
        if isinstance(value, list):
            return [self.measured(item, name) for item in value]
        if isinstance(value, float):
            return round(value * (1 + self.index % 97 / 1000), 6)
        if name == "torch" and isinstance(value, str) and self.odd % 4 == 1:
            return "2.1.0"
        if name == "shm_total_bytes" and isinstance(value, int) and self.odd % 4 == 2:
            return 64 * 2**20
        if name == "mtu" and isinstance(value, int) and self.odd % 4 == 3:
            return 1280
        return value


def _links(
    recording: Recording, fleet: Fleet, facts: Sequence[FactRecord], makers: Sequence[_Maker]
) -> Iterator[FactRecord]:
    """The requests between these nodes, wave by wave, each with the results of the real nodes."""
    by_name = {maker.name: maker for maker in makers}
    models: dict[str, list[FactRecord]] = {}
    for fact in recording.facts:
        models.setdefault(fact.request.probe, []).append(fact)
    known = {fact.request.key for fact in facts}
    seen = list(facts)
    for wave in range(_WAVES):
        found = Facts(tuple(seen))
        planned: dict[str, Request] = {}
        for check in registry.checks():
            plan = check.follow_up if wave else check.plan
            for job in recording.jobs if check.when == "link" and plan is not None else ():
                for request in plan(job, fleet, found):
                    if request.key not in known:
                        planned.setdefault(request.key, request)
        if not planned:
            return
        known.update(planned)
        for request in planned.values():
            model = models.get(request.probe)
            if model:
                seen.append(_between(request, model, by_name))
                yield seen[-1]


def _between(request: Request, models: Sequence[FactRecord], by_name: Mapping[str, _Maker]) -> FactRecord:
    """One fact of the link stage, of the same shape as the real ones of its probe."""
    maker = by_name[request.node]
    model = models[maker.index % len(models)]
    value: Any = json.loads(json.dumps(model.value))
    rename_match = maker.addresses[0]
    if request.probe.endswith(":dial"):
        known = {target["label"]: target for fact in models for target in fact.value["targets"]}
        value["targets"] = [
            {
                **known[target["label"]],
                **{name: target[name] for name in ("peer", "host")},
                "address": by_name[target["peer"]].addresses[0],
                "source": rename_match,
                "seen_as": rename_match,
            }
            for target in request.params["targets"]
        ]
    elif request.probe.endswith(":measure"):
        peer = by_name[request.peers[0]]
        value = {**value, "peer": peer.name, "address": peer.addresses[0], "source": rename_match}
    elif request.probe.endswith(":routes"):
        route = value["routes"][0]
        there = [
            {"destination": address, "address": address, "source": rename_match}
            for address in request.params["addresses"]
        ]
        value["routes"] = [{**route, **item} for item in there]
    elif request.probe.endswith(":listen"):
        value["token"] = f"{maker.index:032x}"
    return replace(model, request=request, value=maker.measured(value))


def main() -> None:
    """Write one recording."""
    out, count, *given = sys.argv[1:]
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        base = load(Path(given[0]).read_bytes()) if given else real(Path(folder))
    made = grown(base, int(count))
    Path(out).write_bytes(save(made, compressed=out.endswith(".gz")))
    print(f"{out}: {len(made.nodes)} nodes, {len(made.facts)} facts, {Path(out).stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
