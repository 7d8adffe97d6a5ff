"""`colossalai run`: reads a list of hosts or a hostfile and starts torchrun on each of them over ssh.

The options are generated (preflight/sources/tables). Source of defaults: colossalai/cli/launcher/run.py.
"""

from __future__ import annotations

from preflight.model.job import Known, Reference, Relation, Strength, as_int
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.claim_builder import ClaimBuilder, as_strings, as_text, count_of, state_unknown
from preflight.sources.launchers.launcher_settings import state_launcher
from preflight.sources.launchers.option_parser import ScannedLine, generated_table, scan, text_of, texts
from preflight.sources.launchers.paths import paths_of, relative
from preflight.sources.launchers.started_program import read_program
from preflight.sources.tables import load_table

_OPTIONS = generated_table(load_table("colossalai_run"), abbreviations=False, single_dash=True)
_PORT = 29500


class ColossalReader:
    """Reads the command line of Colossal-AI's launcher."""

    name: str = "colossalai"
    names: tuple[str, ...] = ("colossalai",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State hosts, counts and the address of the store; refer to the hostfile."""
        if len(line.words) < 2 or text_of(line.words[1]) != "run":
            return Reading()
        scanned = scan(line.words[2:], _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        program = read_program(line, self.name, scanned.rest, tree, module=scanned.last("m") is not None)
        hosts, nodes = scanned.last("host"), scanned.last("num_nodes")
        if hosts is not None and texts(hosts.value) != ("",):
            builder.add_setting("hosts", hosts, as_strings, strength=Strength.SCHEDULER)
            builder.add_setting("nodes", hosts, lambda value: count_of(as_strings(value)), strength=Strength.SCHEDULER)
        if nodes is not None and texts(nodes.value) != ("-1",):
            builder.add_setting("nodes", nodes, as_int, relation=Relation.AT_LEAST)
        builder.add_setting("processes_per_node", scanned.last("nproc_per_node"), as_int)
        builder.add_setting("master_addr", scanned.last("master_addr"), as_text)
        _state_port(builder, scanned, line)
        state_unknown(builder, scanned)
        state_launcher(builder, "colossalai_run", line.words[0], scanned)
        return Reading(
            claims=(*builder.claims, *program.claims),
            launches=(program.launch,),
            references=(*_hostfile(scanned, line, tree), *program.references),
        )


def _state_port(builder: ClaimBuilder, scanned: ScannedLine, line: LaunchLine) -> None:
    port, word = scanned.last("master_port"), line.words[0]
    if port is not None:
        builder.add_setting("master_port", port, as_int)
    elif not scanned.incomplete:
        spelling = f"{word.spelling} (without --master_port)"
        builder.add("master_port", Known(_PORT), word.span, spelling, strength=Strength.DEFAULT)


def _hostfile(scanned: ScannedLine, line: LaunchLine, tree: Tree) -> list[Reference]:
    given = scanned.last("hostfile")
    if given is None:
        return []
    targets = [relative(path, line, tree) for path in paths_of(given.value, given.parts)]
    return [Reference(target, "hostfile", given.span, line.scope) for target in targets if target]
