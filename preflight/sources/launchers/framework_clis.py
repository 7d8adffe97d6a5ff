"""Commands of further frameworks that start ranks themselves: primus-cli, nemo llm, paddleformers-cli.

Sources: runner/primus-cli, primus-cli-direct.sh and primus-cli-slurm.sh (Primus 0.3), which build a line of torchrun
from variables; `nemo llm --help` (NeMo 2.3), whose overrides are those of the trainer; paddleformers-cli (PaddleFormers
0.4), which starts Paddle's launcher on each node, configured by variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from preflight.model.job import Known, Relation, Span, Strength, Unresolved, as_int, lift
from preflight.model.job.quantities import SETTING_PREFIX
from preflight.model.job.symbols import Symbol
from preflight.sources.base import LaunchLine, Reading, Tree, Variable, Word
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    as_strings,
    as_text,
    count_of,
    state_all_gpus,
    variable_setting,
)
from preflight.sources.launchers.option_parser import known_prefix, scan, table, text_of
from preflight.sources.launchers.started_program import read_program
from preflight.sources.launchers.torchrun import TorchrunReader

_GLOBAL = table({"config": "--config"}, {"flag": "--debug --dry-run --version"}, abbreviations=False)
_DIRECT = table(
    {"env": "--env", "script": "--script", "patch": "--patch", "log": "--log_file --log-file"},
    {"single": "--single", "flag": "--numa --no-numa --silent --debug --dry-run"},
    abbreviations=False,
    interleaved=True,
)
_SLURM = table({"nodes": "-N --nodes", "name": "-J --job-name", "partition": "-p --partition"}, abbreviations=False)
#: Variable to torchrun's option, and the default of primus-cli.
_PRIMUS_VARIABLES = {
    "NNODES": ("--nnodes", "1"),
    "GPUS_PER_NODE": ("--nproc_per_node", "8"),
    "NODE_RANK": ("--node_rank", "0"),
    "MASTER_ADDR": ("--master_addr", "localhost"),
    "MASTER_PORT": ("--master_port", "1234"),
}
_SLURM_SYMBOLS = {
    "NNODES": Symbol.ALLOCATED_HOST_COUNT,
    "NODE_RANK": Symbol.NODE_RANK,
    "MASTER_ADDR": Symbol.FIRST_ALLOCATED_HOST,
}
_TRAINS = ("train",)


class PrimusReader:
    """Reads `primus-cli direct|container|slurm ... -- train pretrain --config exp.yaml`."""

    name: str = "primus-cli"
    names: tuple[str, ...] = ("primus-cli",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State the claims of the torchrun line that primus-cli builds on each node."""
        rest = scan(line.words[1:], _GLOBAL).rest
        mode = text_of(rest[0]) if rest else None
        if mode not in ("direct", "container", "slurm"):
            return Reading()
        own, program = _split_at_dashes(rest[1:])
        if not program or text_of(program[0]) not in _TRAINS:
            return Reading()
        options = scan(own, _DIRECT)
        word = line.words[0]
        module = (_inserted_word("-m", word), _inserted_word("primus.cli.main", word))
        if options.last("single") is not None:
            one = read_program(line, self.name, (module[1], *program), tree, module=True)
            builder = ClaimBuilder(self.name, line.scope, line.command.condition)
            for quantity in ("nodes", "processes_per_node"):
                builder.add(quantity, Known(1), word.span, f"{word.spelling} --single")
            return Reading((*builder.claims, *one.claims), (one.launch,), one.references)
        slurm = scan(own[1:], _SLURM) if mode == "slurm" else None
        nodes = slurm.last("nodes") if slurm is not None else None
        given = _env_variables(options.every("env"))
        words: list[Word] = []
        for name, (option, default) in _PRIMUS_VARIABLES.items():
            variable = line.command.environment.get(name)
            if name == "NNODES" and nodes is not None:
                words += [
                    _inserted_word(option, word),
                    Word(nodes.value, nodes.span, nodes.spelling, parts=nodes.parts),
                ]
            elif name in given:
                value, span, spelling = given[name]
                words += [_inserted_word(option, word), Word(Known(value), span, spelling)]
            elif variable is not None:
                spelled = variable.spelling if name in variable.spelling else f"{name}={variable.spelling}"
                words += [_inserted_word(option, word), Word(variable.value, variable.span, spelled)]
            elif name in _SLURM_SYMBOLS and (slurm is not None or "srun" in line.wrappers or name != "NNODES"):
                # primus-cli takes it from the allocation that it runs in, and it may run in one.
                shown = f"{word.spelling} (without {name})"
                words += [_inserted_word(option, word), Word(Unresolved(_SLURM_SYMBOLS[name].value), word.span, shown)]
            else:
                words += [
                    _inserted_word(option, word),
                    _inserted_word(default, word, f"{word.spelling} (without {name})"),
                ]
        built = (word, *words, *module, *program)
        return TorchrunReader().read(replace(line, words=built), tree)


def _split_at_dashes(words: Sequence[Word]) -> tuple[Sequence[Word], Sequence[Word]]:
    """The words before the last `--`, and the words after it."""
    found = [index for index, word in enumerate(words) if text_of(word) == "--"]
    return (words[: found[-1]], words[found[-1] + 1 :]) if found else (words, ())


def _env_variables(options: Sequence[object]) -> dict[str, tuple[str, Span, str]]:
    """The variables of `--env NAME=VALUE`."""
    found: dict[str, tuple[str, Span, str]] = {}
    for option in options:
        value = getattr(option, "value", None)
        if isinstance(value, Known) and "=" in str(value.value):
            name, _, text = str(value.value).partition("=")
            found[name] = (text, option.span, option.spelling)  # type: ignore[attr-defined]
    return found


def _inserted_word(text: str, at: Word, spelling: str = "") -> Word:
    """A word that the command itself adds to the line that it builds."""
    return Word(Known(text), at.span, spelling or at.spelling)


class NemoReader:
    """Reads `nemo llm pretrain|finetune --factory RECIPE trainer.num_nodes=2 ...`."""

    name: str = "nemo"
    names: tuple[str, ...] = ("nemo",)
    _COMMANDS = frozenset({"pretrain", "finetune", "train", "dpo"})

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State the sizes that the overrides set; those of the recipe itself are in an installed package."""
        commands = [text_of(word) for word in line.words[1:3]]
        if len(commands) < 2 or commands[0] not in ("llm", "vlm", "diffusion") or commands[1] not in self._COMMANDS:
            return Reading()
        word = line.words[0]
        module = _inserted_word("nemo.collections.llm", word)
        program = read_program(line, self.name, (module, *line.words[3:]), tree, module=True)
        claims = tuple(
            # The trainer itself starts the processes of its node.
            replace(claim, relation=Relation.SETS) if claim.quantity == "processes_per_node" else claim
            for claim in program.claims
            if claim.quantity != "script"
        )
        references = tuple(found for found in program.references if found.role != "script")
        return Reading(claims, (replace(program.launch, program=""),), references)


class PaddleFormersReader:
    """Reads `paddleformers-cli train CONFIG`, which starts Paddle's launcher on this node."""

    name: str = "paddleformers-cli"
    names: tuple[str, ...] = ("paddleformers-cli",)

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State nodes and processes from variables; refer to the file of arguments."""
        if len(line.words) < 3 or text_of(line.words[1]) != "train" or known_prefix(line.words[2]).startswith("-"):
            return Reading()
        word = line.words[0]
        module = _inserted_word("paddleformers.cli.launcher", word)
        program = read_program(line, self.name, (module, *line.words[2:]), tree, module=True)
        builder = ClaimBuilder(self.name, line.scope, line.command.condition)
        _state_paddle(builder, word, line.command.environment)
        file = line.words[2]
        builder.add(f"{SETTING_PREFIX}paddlenlp.file", lift(str, file.value), file.span, file.spelling)
        claims = tuple(claim for claim in program.claims if claim.quantity != "script")
        references = tuple(found for found in program.references if found.role != "script")
        return Reading((*builder.claims, *claims), (replace(program.launch, program=""),), references)


def _state_paddle(builder: ClaimBuilder, word: Word, environment: Mapping[str, Variable]) -> None:
    settings = {name: variable_setting(variable) for name, variable in environment.items()}
    nodes = settings.get("NNODES")
    if nodes is not None:
        builder.add_setting("nodes", nodes, as_int, relation=Relation.REQUIRES)
    else:
        spelling = f"{word.spelling} (without NNODES)"
        builder.add("nodes", Known(1), word.span, spelling, strength=Strength.DEFAULT, relation=Relation.REQUIRES)
    devices = settings.get("CUDA_VISIBLE_DEVICES")
    builder.add_setting("processes_per_node", devices, lambda value: count_of(as_strings(lift(str, value))))
    if devices is None:
        state_all_gpus(builder, word, "CUDA_VISIBLE_DEVICES")
    builder.add_setting("node_rank", settings.get("NODE_RANK"), as_int)
    builder.add_setting("master_addr", settings.get("MASTER_ADDR"), as_text)
    builder.add_setting("master_port", settings.get("MASTER_PORT"), as_int)
