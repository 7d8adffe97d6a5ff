"""`fabric run`, once `lightning run model`: Lightning's front for torchrun with a static rendezvous.

The options are generated (preflight/tables). Source of what becomes of them: lightning/fabric/cli.py,
`_torchrun_launch`.
"""

from __future__ import annotations

from preflight.job import Known, Plain, Relation, Strength, Unresolved, Value, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.options import generated, scan, text_of, texts
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_text
from preflight.tables.fabric_run import FABRIC_RUN

_OPTIONS = generated(FABRIC_RUN, abbreviations=False)
_PER_TASK = ("srun", "mpirun", "pdsh", "clush")
_PORT = 29400


class FabricReader:
    """Reads the line of Lightning Fabric's launcher."""

    name: str = "fabric"
    names: tuple[str, ...] = ("fabric", "lightning", "-m lightning", "-m lightning.fabric.cli", "-m lightning_fabric")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, devices, rank of the node and the store's place; the other subcommands start nothing."""
        words = list(line.words[1:])
        if not words or text_of(words[0]) != "run":
            return Reading()
        words = words[1:]
        if words and text_of(words[0]) == "model":
            words = words[1:]
        scanned = scan(words, _OPTIONS)
        if scanned.last("help") is not None or not scanned.rest:
            return Reading()
        # Options of Fabric are also taken behind the script; those of the script are left alone.
        behind = scan(scanned.rest[1:], _OPTIONS)
        stating = Stating(self.name, line.scope, line.command.condition)
        program = started(line, self.name, scanned.rest, tree)

        word, hidden = line.words[0], scanned.incomplete or behind.incomplete
        nodes = scanned.last("num_nodes") or behind.last("num_nodes")
        stating.given("nodes", nodes, as_int, relation=Relation.REQUIRES)
        if nodes is None and not hidden:
            spelling = f"{word.spelling} (without --num-nodes)"
            stating.say("nodes", Known(1), word.span, spelling, strength=Strength.DEFAULT, relation=Relation.REQUIRES)
        stating.given("processes_per_node", scanned.last("devices") or behind.last("devices"), _devices)
        stating.given("node_rank", scanned.last("node_rank") or behind.last("node_rank"), as_int)
        several = nodes is not None and texts(nodes.value) not in (("1",), ())
        for dest, quantity, default in (
            ("main_address", "master_addr", Known("127.0.0.1")),
            ("main_port", "master_port", Known(_PORT)),
        ):
            found = scanned.last(dest) or behind.last(dest)
            if found is not None:
                stating.given(quantity, found, as_int if quantity == "master_port" else as_text)
            elif several and not hidden:
                spelling = f"{word.spelling} (without --{dest.replace('_', '-')})"
                stating.say(quantity, default, word.span, spelling, strength=Strength.DEFAULT)
        if any(wrapper in _PER_TASK for wrapper in line.wrappers):
            spelling = f"{word.spelling} (is started once on each node and starts the ranks itself)"
            stating.say("tasks_per_node", Known(1), word.span, spelling, relation=Relation.REQUIRES)
        return Reading(
            claims=(*stating.claims, *program.claims), launches=(program.launch,), references=program.references
        )


def _devices(value: Value) -> Value:
    def count(item: Plain) -> Plain:
        text = str(item)
        if "," in text:
            return len([part for part in text.split(",") if part.strip()])
        if not text.isdigit():
            raise ValueError(f"{text}: as many processes as the node has devices")
        return int(text)

    return value if isinstance(value, Unresolved) else lift(count, value)
