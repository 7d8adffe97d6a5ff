"""`colossalai run`: reads a list of hosts or a hostfile and starts torchrun on each of them over ssh.

The options are generated (preflight/tables). Source of defaults: colossalai/cli/launcher/run.py.
"""

from __future__ import annotations

from preflight.job import Known, Reference, Relation, Strength, as_int
from preflight.sources.base import LaunchLine, Reading, Tree
from preflight.sources.launchers.options import Scanned, generated, scan, text_of, texts
from preflight.sources.launchers.paths import paths_of, relative
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_strings, as_text, count_of, state_unknown
from preflight.tables.colossalai_run import COLOSSALAI_RUN

_OPTIONS = generated(COLOSSALAI_RUN, abbreviations=False, single_dash=True)
_PORT = 29500


class ColossalReader:
    """Reads the line of Colossal-AI's launcher."""

    name: str = "colossalai"
    names: tuple[str, ...] = ("colossalai",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State hosts, counts and the store's place; refer to the hostfile."""
        if len(line.words) < 2 or text_of(line.words[1]) != "run":
            return Reading()
        scanned = scan(line.words[2:], _OPTIONS)
        if scanned.last("help") is not None:
            return Reading()
        stating = Stating(self.name, line.scope, line.command.condition)
        program = started(line, self.name, scanned.rest, tree, module=scanned.last("m") is not None)
        hosts, nodes = scanned.last("host"), scanned.last("num_nodes")
        if hosts is not None and texts(hosts.value) != ("",):
            stating.given("hosts", hosts, as_strings, strength=Strength.SCHEDULER)
            stating.given("nodes", hosts, lambda value: count_of(as_strings(value)), strength=Strength.SCHEDULER)
        if nodes is not None and texts(nodes.value) != ("-1",):
            stating.given("nodes", nodes, as_int, relation=Relation.AT_LEAST)
        stating.given("processes_per_node", scanned.last("nproc_per_node"), as_int)
        stating.given("master_addr", scanned.last("master_addr"), as_text)
        _state_port(stating, scanned, line)
        state_unknown(stating, scanned)
        return Reading(
            claims=(*stating.claims, *program.claims),
            launches=(program.launch,),
            references=(*_hostfile(scanned, line, tree), *program.references),
        )


def _state_port(stating: Stating, scanned: Scanned, line: LaunchLine) -> None:
    port, word = scanned.last("master_port"), line.words[0]
    if port is not None:
        stating.given("master_port", port, as_int)
    elif not scanned.incomplete:
        spelling = f"{word.spelling} (without --master_port)"
        stating.say("master_port", Known(_PORT), word.span, spelling, strength=Strength.DEFAULT)


def _hostfile(scanned: Scanned, line: LaunchLine, tree: Tree) -> list[Reference]:
    given = scanned.last("hostfile")
    if given is None:
        return []
    targets = [relative(path, line, tree) for path in paths_of(given.value, given.parts)]
    return [Reference(target, "hostfile", given.span, line.scope) for target in targets if target]
