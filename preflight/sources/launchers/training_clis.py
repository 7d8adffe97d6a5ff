"""Commands of training packages that start ranks themselves: llamafactory-cli, axolotl, trl, tune, swift, primus-cli,
nemo, fairseq-train.

Sources: llamafactory/launcher.py (LLaMA-Factory 0.9.5), axolotl/cli/main.py and cli/utils/train.py (axolotl 0.19),
trl/cli/commands/training.py (trl 1.16), torchtune/_cli/run.py (torchtune 0.6.1), swift/cli/main.py (ms-swift). All but
the first build a command line of `accelerate launch` or torchrun, so their readers build the same line and pass it to
that launcher's reader.

Sources: runner/primus-cli, primus-cli-direct.sh and primus-cli-slurm.sh (Primus 0.3), which build a line of torchrun
from variables; `nemo llm --help` (NeMo 2.3), whose overrides are those of the trainer; paddleformers-cli (PaddleFormers
0.4), which starts Paddle's launcher on each node, configured by variables.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from preflight.model.job import Known, Relation, Strength, Unresolved, as_int, lift
from preflight.model.job.value import SETTING_PREFIX, Symbol
from preflight.sources.base import LaunchLine, Reading, Tree, Variable, Word
from preflight.sources.configs.hugging_face import SETTINGS
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    node_range,
    state_all_gpus,
    state_options,
    state_single_start,
    variable_setting,
    variables_of,
)
from preflight.sources.launchers.option_parser import (
    GivenOption,
    declared_table,
    known_prefix,
    known_text,
    scan,
    text_of,
    texts,
)
from preflight.sources.launchers.script_arguments import read_program
from preflight.sources.launchers.torch_launchers import read_accelerate, read_torchrun
from preflight.sources.tables import load_table
from preflight.sources.value_readers import as_text

_FALSE_TEXTS = ("", "0", "false", "no", "n")


def read_llamafactory(line: LaunchLine, tree: Tree) -> Reading:
    """Read `llamafactory-cli train`, which starts torchrun on every node, configured by variables.

    The variables are NNODES, NODE_RANK (RANK before 0.9.2), NPROC_PER_NODE, MASTER_ADDR and MASTER_PORT; with RDZV_ID
    the launch is elastic, over c10d. Without FORCE_TORCHRUN it uses torchrun only when the node has several devices.
    """
    if len(line.words) < 2 or text_of(line.words[1]) != "train":
        return Reading()
    word = line.words[0]
    module = Word(Known("llamafactory.launcher"), word.span, word.spelling)
    program = read_program(line, "llamafactory-cli", (module, *line.words[2:]), tree, module=True).of_package()
    builder = ClaimBuilder("llamafactory-cli", line.scope, line.command.condition)
    environment = line.command.environment
    if any(_is_on(environment, name) for name in ("FORCE_TORCHRUN", "NNODES", "NPROC_PER_NODE", "MIN_NNODES")):
        _state_torchrun(builder, line, environment)
    return program.reading(builder.claims)


def _is_on(environment: Mapping[str, Variable], name: str) -> bool:
    variable = environment.get(name)
    return variable is not None and texts(variable.value) not in tuple((off,) for off in _FALSE_TEXTS)


def _state_torchrun(builder: ClaimBuilder, line: LaunchLine, environment: Mapping[str, Variable]) -> None:
    word = line.words[0]
    settings = {name: variable_setting(variable) for name, variable in environment.items()}
    elastic = "RDZV_ID" in settings
    nodes = settings.get("NNODES")
    if elastic and settings.get("MIN_NNODES") and settings.get("MAX_NNODES"):
        low, high = settings["MIN_NNODES"], settings["MAX_NNODES"]
        if low is not None and high is not None:
            both = lift(lambda low_count, high_count: f"{low_count}:{high_count}", low.value, high.value)
            builder.add_setting("nodes", high, lambda _: node_range(both)[1], relation=Relation.REQUIRES)
            builder.add_setting("min_nodes", low, as_int)
    elif nodes is not None:
        builder.add_setting("nodes", nodes, as_int, relation=Relation.REQUIRES)
    else:
        builder.add_default("nodes", Known(1), word, "NNODES", relation=Relation.REQUIRES)
    state_options(builder, "llamafactory-cli", settings.get)
    if "NPROC_PER_NODE" not in settings and "CUDA_VISIBLE_DEVICES" not in settings:
        state_all_gpus(builder, word, "NPROC_PER_NODE")
    if not {"NODE_RANK", "RANK"} & settings.keys() and not elastic and "srun" in line.wrappers:
        builder.add_default("node_rank", Known(0), word, "NODE_RANK")
    spelling = f"{word.spelling} ({'with' if elastic else 'without'} RDZV_ID)"
    backend = Known("c10d" if elastic else "static")
    builder.add("rendezvous_backend", backend, word, spelling, strength=Strength.DEFAULT)
    state_single_start(builder, line)


def _inserted_word(text: str, at: Word, spelling: str = "") -> Word:
    """Return a word that the command itself adds to the line that it builds."""
    return Word(Known(text), at.span, spelling or at.spelling)


def _spelling(name: str, variable: Variable) -> str:
    return variable.spelling if name in variable.spelling else f"{name}={variable.spelling}"


def read_axolotl(line: LaunchLine, tree: Tree) -> Reading:
    """Read the line that `axolotl train CONFIG [--launcher accelerate|torchrun|python] [-- OPTIONS]` builds."""
    word, words = line.words[0], line.words[2:]
    if len(line.words) < 3 or text_of(line.words[1]) != "train":
        return Reading()
    cut = next((index for index, item in enumerate(words) if text_of(item) == "--"), len(words))
    own, options = words[:cut], words[cut + 1 :]
    chosen = scan(own, _LAUNCHER).last("launcher")
    kind = texts(chosen.value) if chosen is not None else ("accelerate",)
    program = (_inserted_word("-m", word), _inserted_word("axolotl.cli.train", word), *own)
    if kind == ("torchrun",):
        if any(known_prefix(item).startswith("--rdzv_endpoint") for item in options):
            backend = any(known_prefix(item).startswith("--rdzv_backend") for item in options)
            options = options if backend else (*options, _inserted_word("--rdzv_backend=c10d", word))
        return read_torchrun(replace(line, words=(word, *options, *program)), tree)
    if kind != ("accelerate",):
        return Reading()
    old = _options_named(own, ("--num-processes", "--num_processes", "--main-process-port", "--main_process_port"))
    built = (word, _inserted_word("launch", word), *old, *options, *program)
    return read_accelerate(replace(line, words=built), tree)


_LAUNCHER = declared_table("axolotl")


def _options_named(words: Sequence[Word], names: tuple[str, ...]) -> list[Word]:
    """Return the options that have one of these names, and their values."""
    found: list[Word] = []
    for index, item in enumerate(words):
        text = text_of(item) or ""
        if text in names and index + 1 < len(words):
            found.extend((item, words[index + 1]))
        elif text.partition("=")[0] in names and "=" in text:
            found.append(item)
    return found


#: Options that trl's own parser consumes before accelerate's.
_TRL_OPTIONS = frozenset(SETTINGS)


@functools.cache
def _accelerate_options() -> dict[str, str]:
    """Return the number of words of each option that reaches accelerate's parser."""
    rows = (row for row in load_table("accelerate_launch").rows if row.dest not in _TRL_OPTIONS)
    return {spelling: row.takes for row in rows for spelling in row.spellings}


_TRL_COMMANDS = frozenset({"dpo", "grpo", "kto", "reward", "rloo", "sft"})


def read_trl(line: LaunchLine, tree: Tree) -> Reading:
    """Read `trl sft|dpo|grpo ... OPTIONS`, which mixes accelerate's options with those of the script, as the line of
    `accelerate launch` that it builds.
    """
    command = text_of(line.words[1]) if len(line.words) > 2 else None
    if command == "vllm-serve":
        return _serve(line, tree)
    if command not in _TRL_COMMANDS:
        return Reading()
    word, options = line.words[0], _accelerate_options()
    for_launcher: list[Word] = []
    for_script: list[Word] = []
    words = list(line.words[2:])
    while words:
        item = words.pop(0)
        name, equals, _ = known_prefix(item).partition("=")
        if name == "--accelerate_config" and words:
            value = words.pop(0)
            if (text_of(value) or "").endswith((".yaml", ".yml", ".json")):
                for_launcher.extend((_inserted_word("--config_file", item), value))
        elif name in options and name.startswith("--"):
            for_launcher.append(item)
            if not equals and options[name] != "0" and words:
                for_launcher.append(words.pop(0))
        else:
            for_script.append(item)
    program = (_inserted_word("-m", word), _inserted_word(f"trl.scripts.{command}", word), *for_script)
    built = (word, _inserted_word("launch", word), *for_launcher, *program)
    return read_accelerate(replace(line, words=built), tree)


def read_tune(line: LaunchLine, tree: Tree) -> Reading:
    """Read `tune run TORCHRUN-OPTIONS RECIPE --config CONFIG`: torchrun, standalone unless an endpoint is given."""
    word, words = line.words[0], line.words[2:]
    if len(line.words) < 4 or text_of(line.words[1]) != "run":
        return Reading()
    if not known_prefix(words[0]).startswith("-"):
        own = replace(line, words=line.words[1:])
        return _one_process(own, "tune", known_prefix(words[0]), "--nproc_per_node", tree)
    endpoint = any(known_prefix(item).startswith(("--rdzv-endpoint", "--rdzv_endpoint")) for item in words)
    standalone = Word(Known("--standalone"), word.span, f"{word.spelling} run (without --rdzv_endpoint: standalone)")
    built = (word, *(() if endpoint else (standalone,)), *words)
    return read_torchrun(replace(line, words=built), tree)


def _one_process(line: LaunchLine, launcher: str, module: str, variable: str, tree: Tree) -> Reading:
    """Return the launch of a command that starts one process, because no option requests more."""
    word = line.words[0]
    program = read_program(line, launcher, (_inserted_word(module, word), *line.words[2:]), tree, module=True)
    builder = ClaimBuilder(launcher, line.scope, line.command.condition)
    for quantity in ("nodes", "processes_per_node"):
        builder.add_default(quantity, Known(1), word, f"{variable}: one process")
    return program.reading(builder.claims)


_SERVE = declared_table("vllm-serve")


def _serve(line: LaunchLine, tree: Tree) -> Reading:
    """Read the engines of `trl vllm-serve`, which runs beside the training on one node."""
    word = line.words[0]
    scanned = scan(line.words[2:], _SERVE)
    builder = ClaimBuilder("trl", line.scope, line.command.condition)
    sizes = []
    for quantity in ("rollout_tensor_parallel_size", "rollout_data_parallel_size"):
        claim = builder.add_setting(quantity, scanned.last(quantity), as_int)
        if claim is None and not scanned.incomplete:
            shown = f"{word.spelling} vllm-serve (without --{quantity.removeprefix('rollout_')})"
            claim = builder.add(quantity, Known(1), word, shown, strength=Strength.DEFAULT)
        sizes += [claim] if claim is not None else []
    builder.add_setting("model_name", scanned.last("model_name"), as_text)
    if len(sizes) == 2:
        processes = lift(lambda *each: each[0] * each[1], *(claim.value for claim in sizes))
        spelling = " x ".join(claim.spelling for claim in sizes)
        builder.add("processes_per_node", processes, sizes[0].span, spelling, because=tuple(sizes))
        builder.add("nodes", Known(1), word, f"{word.spelling} vllm-serve")
    launch = replace(
        read_program(line, "vllm-serve", (), tree).launch, arguments=tuple(text_of(item) for item in line.words[2:])
    )
    return Reading(claims=tuple(builder.claims), launches=(launch,))


_SWIFT_COMMANDS = frozenset({"infer", "pt", "rlhf", "sft"})
_SWIFT_VARIABLES = ("NPROC_PER_NODE", "MASTER_PORT", "NNODES", "NODE_RANK", "MASTER_ADDR")


def read_swift(line: LaunchLine, tree: Tree) -> Reading:
    """Read `swift sft` and `megatron sft` of ms-swift: torchrun, if NPROC_PER_NODE or NNODES is set."""
    command = text_of(line.words[1]) if len(line.words) > 1 else None
    environment = line.command.environment
    if command not in _SWIFT_COMMANDS:
        return Reading()
    word = line.words[0]
    module = f"swift.cli.{'_megatron.' if text_of(word) == 'megatron' else ''}{command}"
    if not {"NPROC_PER_NODE", "NNODES"} & set(environment):
        return _one_process(line, "swift", module, "NPROC_PER_NODE", tree)
    options = []
    for name in _SWIFT_VARIABLES:
        variable = environment.get(name)
        if variable is not None:
            option = Known(f"--{name.lower()}=")
            value = lift(lambda item, option=option: f"{option.value}{item}", variable.value)
            options.append(Word(value, variable.span, _spelling(name, variable), parts=(option, variable.value)))
    program = (_inserted_word("-m", word), _inserted_word(module, word), *line.words[2:])
    return read_torchrun(replace(line, words=(word, *options, *program)), tree)


_GLOBAL = declared_table("primus")
_DIRECT = declared_table("primus-direct")
_SLURM = declared_table("primus-slurm")
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


def read_primus(line: LaunchLine, tree: Tree) -> Reading:
    """Read the torchrun line that `primus-cli direct|container|slurm ... -- train pretrain --config exp.yaml` builds on
    each node.
    """
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
        one = read_program(line, "primus-cli", (module[1], *program), tree, module=True)
        builder = ClaimBuilder("primus-cli", line.scope, line.command.condition)
        for quantity in ("nodes", "processes_per_node"):
            builder.add(quantity, Known(1), word, f"{word.spelling} --single")
        return one.reading(builder.claims)
    slurm = scan(own[1:], _SLURM) if mode == "slurm" else None
    nodes = slurm.last("nodes") if slurm is not None else None
    given = _env_variables(options.every("env"))
    words: list[Word] = []
    for name, (option, default) in _PRIMUS_VARIABLES.items():
        variable = line.command.environment.get(name)
        words.append(_inserted_word(option, word))
        shown = f"{word.spelling} (without {name})"
        if name == "NNODES" and nodes is not None:
            words.append(Word(nodes.value, nodes.span, nodes.spelling, parts=nodes.parts))
        elif name in given:
            words.append(given[name])
        elif variable is not None:
            words.append(Word(variable.value, variable.span, _spelling(name, variable)))
        elif name in _SLURM_SYMBOLS and (slurm is not None or "srun" in line.wrappers or name != "NNODES"):
            # primus-cli takes it from the allocation that it runs in, and it may run in one.
            words.append(Word(Unresolved(_SLURM_SYMBOLS[name].value), word.span, shown))
        else:
            words.append(_inserted_word(default, word, shown))
    built = (word, *words, *module, *program)
    return read_torchrun(replace(line, words=built), tree)


def _split_at_dashes(words: Sequence[Word]) -> tuple[Sequence[Word], Sequence[Word]]:
    """Return the words before the last `--`, and the words after it."""
    found = [index for index, word in enumerate(words) if text_of(word) == "--"]
    return (words[: found[-1]], words[found[-1] + 1 :]) if found else (words, ())


def _env_variables(options: Sequence[GivenOption]) -> dict[str, Word]:
    """Return the variables of `--env NAME=VALUE`."""
    found: dict[str, Word] = {}
    for option in options:
        name, equals, text = known_text(option).partition("=")
        if equals:
            found[name] = Word(Known(text), option.span, option.spelling)
    return found


_NEMO_COMMANDS = frozenset({"pretrain", "finetune", "train", "dpo"})


def read_nemo(line: LaunchLine, tree: Tree) -> Reading:
    """Read the sizes that the overrides of `nemo llm pretrain|finetune --factory RECIPE trainer.num_nodes=2 ...` set.

    Those of the recipe itself are in an installed package.
    """
    commands = [text_of(word) for word in line.words[1:3]]
    if len(commands) < 2 or commands[0] not in ("llm", "vlm", "diffusion") or commands[1] not in _NEMO_COMMANDS:
        return Reading()
    word = line.words[0]
    module = _inserted_word("nemo.collections.llm", word)
    program = read_program(line, "nemo", (module, *line.words[3:]), tree, module=True).of_package()
    claims = tuple(
        # The trainer itself starts the processes of its node.
        replace(claim, relation=Relation.SETS) if claim.quantity == "processes_per_node" else claim
        for claim in program.claims
    )
    return replace(program, claims=claims).reading()


def read_paddleformers(line: LaunchLine, tree: Tree) -> Reading:
    """Read `paddleformers-cli train CONFIG`, which starts Paddle's launcher on this node, configured by variables."""
    if len(line.words) < 3 or text_of(line.words[1]) != "train" or known_prefix(line.words[2]).startswith("-"):
        return Reading()
    word = line.words[0]
    module = _inserted_word("paddleformers.cli.launcher", word)
    program = read_program(line, "paddleformers-cli", (module, *line.words[2:]), tree, module=True).of_package()
    builder = ClaimBuilder("paddleformers-cli", line.scope, line.command.condition)
    variables = variables_of(line.command.environment)
    state_options(builder, "paddleformers-cli", variables, word)
    if variables("CUDA_VISIBLE_DEVICES") is None:
        state_all_gpus(builder, word, "CUDA_VISIBLE_DEVICES")
    file = line.words[2]
    builder.add(f"{SETTING_PREFIX}paddlenlp.file", lift(str, file.value), file)
    return program.reading(builder.claims)


def read_fairseq(line: LaunchLine, tree: Tree) -> Reading:
    """Read `fairseq-train`, which starts a process for each GPU of its node unless a launcher has set the ranks."""
    return read_program(line, "fairseq-train", line.words, tree, python=False).reading()
