"""`fabric run`, formerly `lightning run model`: Lightning's front end for torchrun with a static rendezvous.

The options are generated (preflight/sources/tables). Source of their meaning: lightning/fabric/cli.py,
`_torchrun_launch`.
"""

from __future__ import annotations

from preflight.model.job import Known, Plain, Relation, Strength, Unresolved, Value, as_int, is_whole_number, lift
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.claim_builder import ClaimBuilder, as_text
from preflight.sources.launchers.option_parser import generated_table, scan, text_of, texts
from preflight.sources.launchers.started_program import read_program
from preflight.sources.tables import load_table

_OPTIONS = generated_table(load_table("fabric_run"), abbreviations=False)
_PER_TASK = ("srun", "mpirun", "pdsh", "clush")
_PORT = 29400


class FabricReader:
    """Reads the command line of Lightning Fabric's launcher."""

    name: str = "fabric"
    names: tuple[str, ...] = ("fabric", "lightning", "-m lightning", "-m lightning.fabric.cli", "-m lightning_fabric")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes, devices, node rank and the address of the store; other subcommands launch nothing."""
        words = list(line.words[1:])
        if not words or text_of(words[0]) != "run":
            return Reading()
        words = words[1:]
        if words and text_of(words[0]) == "model":
            words = words[1:]
        scanned = scan(words, _OPTIONS)
        if scanned.last("help") is not None or not scanned.rest:
            return Reading()
        # Fabric also accepts its options after the script; the script's own options are ignored here.
        after_script = scan(scanned.rest[1:], _OPTIONS)
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(line, self.name, scanned.rest, tree)

        word, hidden = line.words[0], scanned.incomplete or after_script.incomplete
        nodes = scanned.last("num_nodes") or after_script.last("num_nodes")
        builder.add_setting("nodes", nodes, as_int, relation=Relation.REQUIRES)
        if nodes is None and not hidden:
            spelling = f"{word.spelling} (without --num-nodes)"
            builder.add("nodes", Known(1), word.span, spelling, strength=Strength.DEFAULT, relation=Relation.REQUIRES)
        builder.add_setting("processes_per_node", scanned.last("devices") or after_script.last("devices"), _devices)
        builder.add_setting("node_rank", scanned.last("node_rank") or after_script.last("node_rank"), as_int)
        several = nodes is not None and texts(nodes.value) not in (("1",), ())
        for dest, quantity, default in (
            ("main_address", "master_addr", Known("127.0.0.1")),
            ("main_port", "master_port", Known(_PORT)),
        ):
            found = scanned.last(dest) or after_script.last(dest)
            if found is not None:
                builder.add_setting(quantity, found, as_int if quantity == "master_port" else as_text)
            elif several and not hidden:
                spelling = f"{word.spelling} (without --{dest.replace('_', '-')})"
                builder.add(quantity, default, word.span, spelling, strength=Strength.DEFAULT)
        if any(wrapper in _PER_TASK for wrapper in line.wrappers):
            spelling = f"{word.spelling} (is started once on each node and starts the ranks itself)"
            builder.add("tasks_per_node", Known(1), word.span, spelling, relation=Relation.REQUIRES)
        return Reading(
            claims=(*builder.claims, *program.claims), launches=(program.launch,), references=program.references
        )


def _devices(value: Value) -> Value:
    def count(item: Plain) -> Plain:
        text = str(item)
        if "," in text:
            return len([part for part in text.split(",") if part.strip()])
        if not is_whole_number(text):
            raise ValueError(f"{text}: as many processes as the node has devices")
        return int(text)

    return value if isinstance(value, Unresolved) else lift(count, value)
