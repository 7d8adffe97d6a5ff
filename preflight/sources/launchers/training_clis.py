"""Commands of training packages that start ranks themselves: llamafactory-cli, axolotl, trl, tune, swift.

Sources: llamafactory/launcher.py (LLaMA-Factory 0.9.5), axolotl/cli/main.py and cli/utils/train.py (axolotl 0.19),
trl/cli/commands/training.py (trl 1.16), torchtune/_cli/run.py (torchtune 0.6.1), swift/cli/main.py (ms-swift). All but
the first build a line of `accelerate launch` or torchrun, so that line is put together here and given to the reader of
that launcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from preflight.job import Known, Relation, Strength, as_int, lift
from preflight.sources.base import LaunchLine, Reading, Tree, Variable, Word
from preflight.sources.launchers.accelerate import AccelerateReader
from preflight.sources.launchers.options import head, scan, table, text_of, texts
from preflight.sources.launchers.starting import started
from preflight.sources.launchers.stating import Stating, as_text, node_range, said_by
from preflight.sources.launchers.torchrun import TorchrunReader
from preflight.sources.trainer_settings import SETTINGS
from preflight.tables.accelerate_launch import ACCELERATE_LAUNCH

_PER_TASK = ("srun", "mpirun", "mpiexec")
_OFF = ("", "0", "false", "no", "n")


class LlamaFactoryReader:
    """Reads `llamafactory-cli train`: torchrun on every node, told by variables.

    NNODES, NODE_RANK (RANK before 0.9.2), NPROC_PER_NODE, MASTER_ADDR, MASTER_PORT; with RDZV_ID an elastic launch over
    c10d. Without FORCE_TORCHRUN it is torchrun only where the node has several devices.
    """

    name: str = "llamafactory-cli"
    names: tuple[str, ...] = ("llamafactory-cli", "lmf", "-m llamafactory.cli", "-m llamafactory.launcher")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State what the variables say of nodes, processes and the meeting place; refer to the file of arguments."""
        if len(line.words) < 2 or text_of(line.words[1]) != "train":
            return Reading()
        word = line.words[0]
        module = Word(Known("llamafactory.launcher"), word.span, word.spelling)
        program = started(line, self.name, (module, *line.words[2:]), tree, module=True)
        program = replace(program, launch=replace(program.launch, program=""))
        claims = tuple(claim for claim in program.claims if claim.quantity != "script")
        references = tuple(found for found in program.references if found.role != "script")
        stating = Stating(self.name, line.scope, line.command.condition)
        environment = line.command.environment
        if any(_is_on(environment, name) for name in ("FORCE_TORCHRUN", "NNODES", "NPROC_PER_NODE", "MIN_NNODES")):
            _state_torchrun(stating, line, environment)
        return Reading(claims=(*stating.claims, *claims), launches=(program.launch,), references=references)


def _is_on(environment: Mapping[str, Variable], name: str) -> bool:
    variable = environment.get(name)
    return variable is not None and texts(variable.value) not in tuple((off,) for off in _OFF)


def _state_torchrun(stating: Stating, line: LaunchLine, environment: Mapping[str, Variable]) -> None:
    word = line.words[0]
    say = {name: said_by(variable) for name, variable in environment.items()}
    elastic = "RDZV_ID" in say
    nodes = say.get("NNODES")
    if elastic and say.get("MIN_NNODES") and say.get("MAX_NNODES"):
        low, high = say["MIN_NNODES"], say["MAX_NNODES"]
        if low is not None and high is not None:
            both = lift(lambda one, other: f"{one}:{other}", low.value, high.value)
            stating.given("nodes", high, lambda _: node_range(both)[1], relation=Relation.REQUIRES)
            stating.given("min_nodes", low, as_int)
    elif nodes is not None:
        stating.given("nodes", nodes, as_int, relation=Relation.REQUIRES)
    else:
        spelling = f"{word.spelling} (without NNODES)"
        stating.say("nodes", Known(1), word.span, spelling, strength=Strength.DEFAULT, relation=Relation.REQUIRES)
    stating.given("processes_per_node", say.get("NPROC_PER_NODE"), as_int)
    # Until 0.9.2 the variable was RANK, and scripts still set that one: what they mean is the rank of the node.
    rank = say.get("NODE_RANK") or say.get("RANK")
    stating.given("node_rank", rank, as_int)
    if rank is None and not elastic and "srun" in line.wrappers:
        spelling = f"{word.spelling} (without NODE_RANK)"
        stating.say("node_rank", Known(0), word.span, spelling, strength=Strength.DEFAULT)
    stating.given("master_addr", say.get("MASTER_ADDR"), as_text)
    stating.given("master_port", say.get("MASTER_PORT"), as_int)
    stating.given("rendezvous_id", say.get("RDZV_ID"), as_text)
    stating.given("max_restarts", say.get("MAX_RESTARTS"), as_int)
    stating.say(
        "rendezvous_backend",
        Known("c10d" if elastic else "static"),
        word.span,
        f"{word.spelling} ({'with' if elastic else 'without'} RDZV_ID)",
        strength=Strength.DEFAULT,
    )
    if any(wrapper in _PER_TASK for wrapper in line.wrappers):
        spelling = f"{word.spelling} (is started once on each node and starts the ranks itself)"
        stating.say("tasks_per_node", Known(1), word.span, spelling, relation=Relation.REQUIRES)


def _word(text: str, at: Word) -> Word:
    """A word that the command itself puts on the line it builds."""
    return Word(Known(text), at.span, at.spelling)


class AxolotlReader:
    """Reads `axolotl train CONFIG [--launcher accelerate|torchrun|python] [-- LAUNCHER OPTIONS]`."""

    name: str = "axolotl"
    names: tuple[str, ...] = ("axolotl", "-m axolotl.cli.main")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """What the line of the launcher says that axolotl builds."""
        word, words = line.words[0], line.words[2:]
        if len(line.words) < 3 or text_of(line.words[1]) != "train":
            return Reading()
        cut = next((index for index, item in enumerate(words) if text_of(item) == "--"), len(words))
        own, options = words[:cut], words[cut + 1 :]
        chosen = scan(own, _LAUNCHER).last("launcher")
        kind = texts(chosen.value) if chosen is not None else ("accelerate",)
        program = (_word("-m", word), _word("axolotl.cli.train", word), *own)
        if kind == ("torchrun",):
            if any(head(item).startswith("--rdzv_endpoint") for item in options):
                backend = any(head(item).startswith("--rdzv_backend") for item in options)
                options = options if backend else (*options, _word("--rdzv_backend=c10d", word))
            return TorchrunReader().read(replace(line, words=(word, *options, *program)), tree)
        if kind != ("accelerate",):
            return Reading()
        old = _pairs(own, ("--num-processes", "--num_processes", "--main-process-port", "--main_process_port"))
        built = (word, _word("launch", word), *old, *options, *program)
        return AccelerateReader().read(replace(line, words=built), tree)


_LAUNCHER = table({"launcher": "--launcher"}, abbreviations=False, interleaved=True)


def _pairs(words: Sequence[Word], names: tuple[str, ...]) -> list[Word]:
    """The options of these names among the words, with their values."""
    found: list[Word] = []
    for index, item in enumerate(words):
        text = text_of(item) or ""
        if text in names and index + 1 < len(words):
            found.extend((item, words[index + 1]))
        elif text.partition("=")[0] in names and "=" in text:
            found.append(item)
    return found


#: Options that trl's own parser takes before accelerate's sees them.
_OWN = frozenset(SETTINGS)
_ACCELERATE = {
    spelling: row.takes for row in ACCELERATE_LAUNCH.rows for spelling in row.spellings if row.dest not in _OWN
}


class TrlReader:
    """Reads `trl sft|dpo|grpo ... OPTIONS`: accelerate's options among those of the script."""

    name: str = "trl"
    names: tuple[str, ...] = ("trl", "-m trl.cli")
    _COMMANDS = frozenset({"dpo", "grpo", "kto", "reward", "rloo", "sft"})

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """What the line of `accelerate launch` says that trl builds."""
        command = text_of(line.words[1]) if len(line.words) > 2 else None
        if command not in self._COMMANDS:
            return Reading()
        word = line.words[0]
        for_launcher: list[Word] = []
        for_script: list[Word] = []
        words = list(line.words[2:])
        while words:
            item = words.pop(0)
            name, equals, _ = head(item).partition("=")
            if name == "--accelerate_config" and words:
                value = words.pop(0)
                if (text_of(value) or "").endswith((".yaml", ".yml", ".json")):
                    for_launcher.extend((_word("--config_file", item), value))
            elif name in _ACCELERATE and name.startswith("--"):
                for_launcher.append(item)
                if not equals and _ACCELERATE[name] != "0" and words:
                    for_launcher.append(words.pop(0))
            else:
                for_script.append(item)
        program = (_word("-m", word), _word(f"trl.scripts.{command}", word), *for_script)
        built = (word, _word("launch", word), *for_launcher, *program)
        return AccelerateReader().read(replace(line, words=built), tree)


class TuneReader:
    """Reads `tune run TORCHRUN-OPTIONS RECIPE --config CONFIG`: torchrun, standalone unless an endpoint is given."""

    name: str = "tune"
    names: tuple[str, ...] = ("tune",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """What the line of torchrun says that tune builds."""
        word, words = line.words[0], line.words[2:]
        if len(line.words) < 4 or text_of(line.words[1]) != "run" or not head(words[0]).startswith("-"):
            return Reading()
        endpoint = any(head(item).startswith(("--rdzv-endpoint", "--rdzv_endpoint")) for item in words)
        alone = Word(Known("--standalone"), word.span, f"{word.spelling} run (without --rdzv_endpoint: standalone)")
        built = (word, *(() if endpoint else (alone,)), *words)
        return TorchrunReader().read(replace(line, words=built), tree)


class SwiftReader:
    """Reads `swift sft` and `megatron sft` of ms-swift: torchrun with what five variables say, if one of two is set."""

    name: str = "swift"
    names: tuple[str, ...] = ("swift", "megatron")
    _COMMANDS = frozenset({"infer", "pt", "rlhf", "sft"})
    _VARIABLES = ("NPROC_PER_NODE", "MASTER_PORT", "NNODES", "NODE_RANK", "MASTER_ADDR")

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """What the line of torchrun says that swift builds."""
        command = text_of(line.words[1]) if len(line.words) > 1 else None
        environment = line.command.environment
        if command not in self._COMMANDS or not {"NPROC_PER_NODE", "NNODES"} & set(environment):
            return Reading()
        word = line.words[0]
        options = []
        for name in self._VARIABLES:
            variable = environment.get(name)
            if variable is not None:
                option = Known(f"--{name.lower()}=")
                value = lift(lambda item, option=option: f"{option.value}{item}", variable.value)
                spelling = variable.spelling if name in variable.spelling else f"{name}={variable.spelling}"
                options.append(Word(value, variable.span, spelling, parts=(option, variable.value)))
        program = (_word("-m", word), _word(f"swift.cli.{command}", word), *line.words[2:])
        return TorchrunReader().read(replace(line, words=(word, *options, *program)), tree)
