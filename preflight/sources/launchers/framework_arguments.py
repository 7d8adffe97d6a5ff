"""Claims from the arguments of trainers and frameworks: what a command line sets, and the configuration file it names.

The batch options (`--per_device_train_batch_size`, ...) are in `script_arguments`, with those of other frameworks.

OpenRLHF and slime sum the GPUs of their groups, unless the groups share them.

`--job.config_file llama.toml --parallelism.tensor_parallel_degree=2` (torchtitan), `--config-file tiny.yaml`
(nanotron), `train.yaml model.n_layers=2` (Composer), `-c gpt.yaml -o Distributed.mp_degree=2` (PaddleFleetX). The file
is recognised by its content, not by the option before it; its claims arrive in the scope of the launch.

Under srun or torchrun, Lightning compares these settings with the started processes and stops when they differ
(SLURMEnvironment.validate_settings and TorchElasticEnvironment.validate_settings, lightning 2.x). Without either it
starts the processes of its node itself.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from preflight._util import toml
from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import (
    Claim,
    Known,
    Plain,
    Reference,
    Relation,
    Strength,
    Unresolved,
    Value,
    as_int,
    lift,
    product,
)
from preflight.model.job.value import SETTING_PREFIX, known_number
from preflight.sources.base import LaunchLine, SourceFile, Tree, Word
from preflight.sources.configs.framework_files import DeepSpeedSource, Framework, framework_of, source_of
from preflight.sources.configs.hugging_face import (
    FIELDS,
    FRAMEWORK,
    MODEL_ROLE,
    PRECISIONS,
    SETTINGS,
    TRAINER_ROLE,
    AccelerateSource,
    TrainerConfigSource,
    config_of,
    converted,
    precision_of,
)
from preflight.sources.configs.training_settings import FrameworkConfigSource, TrainingSettingsSource
from preflight.sources.formats.structured import document_of, value_of
from preflight.sources.launchers.claim_builder import ClaimBuilder, state_options
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    Table,
    declared_table,
    file_named,
    is_python,
    join_spans,
    known_prefix,
    known_text,
    relative,
    scan,
    table,
    text_of,
    texts,
    value_after,
)
from preflight.sources.tables import load_table
from preflight.sources.value_readers import as_bool, as_devices

#: Options that `script_arguments` and `path_arguments` read for all frameworks.
_READ_BY_SCRIPT_ARGUMENTS = frozenset(
    [
        *("per_device_train_batch_size", "gradient_accumulation_steps", "ddp_timeout", "ddp_backend"),
        *("dataloader_num_workers", "output_dir", "save_total_limit", "tensor_model_parallel_size"),
        *("pipeline_model_parallel_size", "context_parallel_size", "expert_model_parallel_size"),
    ]
)
#: Options with an optional value: `--bf16`, `--bf16 True`, `--bf16=true`.
_SWITCHES = frozenset([*PRECISIONS, "gradient_checkpointing", "load_best_model_at_end"])
_VALUED = [name for name in SETTINGS if name not in _READ_BY_SCRIPT_ARGUMENTS and name not in _SWITCHES]
_OPTIONS = table(
    {name: f"--{name} --{name.replace('_', '-')}" for name in _VALUED}, abbreviations=False, interleaved=True
)
#: Every argument that takes one value; those that may have none are switches.
_ALL = table(
    {
        row.dest: " ".join(row.spellings)
        for row in load_table("training_arguments").rows
        if row.takes == "1" and not row.spellings[0].startswith("--no")
    },
    abbreviations=False,
    interleaved=True,
)
#: So many of the trainer's arguments tell that the line is for it.
_TYPICAL_OPTIONS = 3
#: Those that are read otherwise.
_OTHERS = frozenset(("gradient_checkpointing", "load_best_model_at_end", *PRECISIONS)) | {
    row.dest for row in load_table("training_arguments").rows
}
#: Switches of the trainer that no claim of another name is made of.
_PLAIN_SWITCHES = frozenset(row.dest for row in load_table("training_arguments").rows if row.takes == "?") - _SWITCHES
_KINDS = {
    row.dest: next((kind for kind in ("int", "float") if row.kind.replace(" | None", "").endswith(kind)), None)
    for row in load_table("training_arguments").rows
}
#: Possible first words of the value of `--fsdp` (transformers/trainer_utils.py, FSDPOption).
_FSDP_WORDS = ("full_shard", "shard_grad_op", "hybrid_shard", "hybrid_shard_zero2", "auto_wrap", "offload")
_BOOLEAN_WORDS = ("true", "false", "1", "0", "yes", "no")
_ARGUMENT_FILES = (".yaml", ".yml", ".json")
#: Arguments of a program that are searched for files; more words than this are data.
_MAX_WORDS = 400


def trainer_claims(
    line: LaunchLine, words: Sequence[Word], tree: Tree
) -> tuple[tuple[Claim, ...], tuple[Reference, ...]]:
    """Return the claims of a program's arguments in the scope of the launch, and the file of training arguments they
    name.
    """
    words = truncate(words, _MAX_WORDS, "arguments of a program")
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words, _OPTIONS)
    for name in _VALUED:
        quantity, reader = SETTINGS[name]
        builder.add_setting(quantity, scanned.last(name), reader)
    _state_settings(builder, words)
    _state_paddle(builder, words)
    _state_switches(builder, words)
    _state_sharding(builder, words)
    references = tuple(_argument_files(line, words, tree))
    if references:
        _state_overrides(builder, words)
    return tuple(builder.claims), references


def _state_settings(builder: ClaimBuilder, words: Sequence[Word]) -> None:
    """Add claims for every argument of the trainer on the line as `setting.transformers.NAME`, converted as its parser
    does.
    """
    last: dict[str, GivenOption] = {}
    for given in scan(words, _ALL).given:
        last[given.dest] = given
    # Of a line with several of the trainer's arguments, a name that it does not have: an error where nothing else
    # parses the line.
    for word in words if len(last) >= _TYPICAL_OPTIONS else ():
        name = (text_of(word) or "").partition("=")[0]
        dest = name[2:].replace("-", "_")
        if name.startswith("--") and dest.isidentifier() and dest not in _OTHERS and not is_secret(dest):
            builder.add(f"{SETTING_PREFIX}transformers.{dest}", Known(name), word, name)
    for name, given in last.items():
        if not is_secret(name):
            kind = _KINDS.get(name)
            value = lift(lambda item, kind=kind: _convert(item, kind), given.value)
            builder.add(f"{SETTING_PREFIX}transformers.{name}", value, given)


def _state_paddle(builder: ClaimBuilder, words: Sequence[Word]) -> None:
    """Add claims for the arguments of Paddle's trainers on the line; one without a value is a switch that is on."""
    found: dict[str, GivenOption] = {}
    for index, word in enumerate(words):
        name, equals, text_after = (text_of(word) or "").partition("=")
        if not name.startswith("--") or name[2:] not in FIELDS:
            continue
        following = words[index + 1] if index + 1 < len(words) and not equals else None
        if following is not None and not known_prefix(following).startswith("--") and not following.many:
            found[name[2:]] = _with_value(word, following)
        else:
            value = Known(text_after if equals else True)
            found[name[2:]] = GivenOption(name, value, word.span, word.spelling)
    for dest, given in found.items():
        read = lift(lambda item, dest=dest: converted(dest, item), given.value)
        builder.add(f"{SETTING_PREFIX}{FRAMEWORK}.{dest}", read, given)


def _with_value(word: Word, value: Word) -> GivenOption:
    """Return an option, and the next word as its value."""
    span, spelling = join_spans(word.span, value.span), f"{word.spelling} {value.spelling}"
    return GivenOption(known_prefix(word), value.value, span, spelling)


def _convert(item: Plain, kind: str | None) -> Plain:
    """Return the string as a number, or unchanged if it is not one, because a rule will quote it."""
    try:
        return int(str(item)) if kind == "int" else float(str(item)) if kind == "float" else item
    except ValueError:
        return item


def _state_switches(builder: ClaimBuilder, words: Sequence[Word]) -> None:
    """Add claims for the trainer's switches. Where its parser reads the line, a word after a switch must be a
    boolean.
    """
    found: dict[str, GivenOption] = {}
    refused: dict[str, GivenOption] = {}
    for word, following in itertools.zip_longest(words, words[1:]):
        name, equals, text_after = (text_of(word) or "").partition("=")
        dest = name[2:].replace("-", "_") if name.startswith("--") else ""
        if dest not in _SWITCHES and dest not in _PLAIN_SWITCHES:
            continue
        found[dest] = GivenOption(dest, Known(text_after if equals else True), word.span, word.spelling)
        if not equals and following is not None:
            unknown = isinstance(following.value, Unresolved) and not following.many
            is_boolean = (text_of(following) or "").lower() in _BOOLEAN_WORDS
            if is_boolean or (unknown and not following.spelling.startswith("-")):
                found[dest] = _with_value(word, following)
            elif isinstance(following.value, Known) and not known_prefix(following).startswith("-"):
                refused[dest] = _with_value(word, following)
    for dest, given in found.items():
        setting = f"{SETTING_PREFIX}transformers.{dest}"
        if dest in refused:
            builder.add_setting(setting, refused[dest])
        else:
            builder.add_setting(setting, given, as_bool)
        if dest in PRECISIONS:
            precision = precision_of(dest, given.value)
            if precision is not None:
                builder.add("mixed_precision", precision, given)
        elif dest not in _PLAIN_SWITCHES:
            quantity, reader = SETTINGS[dest]
            builder.add_setting(quantity, given, reader)


def _state_sharding(builder: ClaimBuilder, words: Sequence[Word]) -> None:
    """Add claims for `--deepspeed FILE` and `--fsdp "full_shard auto_wrap"`; without a value, flags of another
    program.
    """
    for word, following in itertools.pairwise(words):
        name, equals, value = (text_of(word) or "").partition("=")
        value_text = value if equals else text_of(following) or ""
        if name == "--deepspeed" and value_text.endswith((".json", ".jsonc", ".hjson")):
            builder.add("sharding_library", Known("deepspeed"), word)
        elif name == "--fsdp" and value_text.split()[:1] and value_text.split()[0] in _FSDP_WORDS:
            builder.add("sharding_library", Known("fsdp"), word)


#: Programs whose argument is a file of training arguments, and the words in which they stand.
_TAKES_FILE = re.compile(r"(?:^|/)(?:llamafactory|axolotl)(?:-cli$|\.cli\b|$)|^lmf$")
_MAX_PROGRAM = 24


def _argument_files(line: LaunchLine, words: Sequence[Word], tree: Tree) -> Iterator[Reference]:
    """Yield references to the files of training arguments on the line."""
    source = TrainerConfigSource()
    # These take such a file for certain, whatever keys are in it.
    certain = any(_TAKES_FILE.search(text_of(word) or "") for word in line.words[:_MAX_PROGRAM])
    for word in words:
        path = (text_of(word) or "").rpartition("=")[2]
        file = file_named(path, line, tree) if path.lower().endswith(_ARGUMENT_FILES) else None
        if file is not None and (certain or source.recognises(file)):
            yield Reference(file.path, TRAINER_ROLE, word.span, line.scope)


def _state_overrides(builder: ClaimBuilder, words: Sequence[Word]) -> None:
    """Add claims for `learning_rate=1e-5` after a file of arguments."""
    for word in words:
        name, equals, text_after = (text_of(word) or "").partition("=")
        if equals and name in SETTINGS:
            quantity, reader = SETTINGS[name]
            builder.add(quantity, reader(Known(text_after)), word)


@dataclass(frozen=True, slots=True)
class ArgumentFramework:
    """One framework that is configured by arguments: a row of `argument_frameworks.toml`, whose head describes the
    fields.
    """

    name: str
    programs: str
    table: Table
    roles: tuple[str, ...] = ()
    numbers: dict[str, str] = field(default_factory=dict)
    switches: dict[str, str] = field(default_factory=dict)
    defaults: dict[str, int] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    starts_ranks: bool = True


def _argument_framework(row: dict[str, Any]) -> ArgumentFramework:
    options = table(**row.pop("options", {"valued": {}}), abbreviations=False, interleaved=True)
    return ArgumentFramework(table=options, **toml.with_tuples(row))


ARGUMENT_FRAMEWORKS = tuple(
    _argument_framework(row) for row in toml.beside(__file__, "argument_frameworks.toml")["framework"]
)


def argument_framework(program: str, words: Sequence[Word]) -> ArgumentFramework | None:
    """Return the framework whose program this is; None for any other."""
    name = program.removesuffix(".py").strip("./").replace("/", ".")
    for framework in ARGUMENT_FRAMEWORKS:
        if re.compile(framework.programs, re.DOTALL).fullmatch(name):
            scanned = scan(words, framework.table)
            if not framework.needs or any(scanned.last(need) is not None for need in framework.needs):
                return framework
    return None


def rl_claims(framework: ArgumentFramework, line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """Return the claims of a framework program's arguments, in the scope of the launch; groups of GPUs in the scopes
    of roles.

    Args:
        framework: the framework of the program.
        line: the launch line.
        words: the arguments; the first word is the program.
    """
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words[1:], framework.table)
    builder.add("training_framework", Known(framework.name), words[0], strength=Strength.DEFAULT)
    for option, quantity in framework.numbers.items():
        builder.add_setting(quantity, scanned.last(option), as_int)
    for option, quantity in framework.switches.items():
        # In asynchronous training the groups share no GPUs, whatever the other options are.
        if scanned.last("async") is None:
            builder.add_setting(quantity, scanned.last(option))
    for role in framework.roles:
        _state_group(builder, framework, role, scanned, words[0])
    return tuple(builder.claims)


def _state_group(
    builder: ClaimBuilder, framework: ArgumentFramework, role: str, scanned: ScannedLine, word: Word
) -> None:
    """Add claims for a role's nodes and GPUs; those of the trained role are the launch's own."""
    scope = builder.scope if role == framework.roles[0] else replace(builder.scope, role=role)
    options = {"nodes": f"{role}_num_nodes", "processes_per_node": f"{role}_num_gpus_per_node"}
    without = [option for option in options.values() if scanned.last(option) is None]
    if without and (scanned.incomplete or not framework.defaults.keys() >= set(without)):
        return
    sides: list[Claim] = []
    for quantity, option in options.items():
        given = scanned.last(option)
        if given is not None:
            sides.append(builder.add(quantity, as_int(given.value), given, scope=scope))
        else:
            default, shown = Known(framework.defaults[option]), f"{word.spelling} (without --{option})"
            sides.append(builder.add(quantity, default, word, shown, strength=Strength.DEFAULT, scope=scope))
    world = lift(product, *(side.value for side in sides))
    spelling = " x ".join(side.spelling for side in sides)
    strength = max(side.strength for side in sides)
    builder.add("world_size", world, sides[1].span, spelling, strength=strength, scope=scope, because=tuple(sides))


#: The role in which a launch refers to such a file.
ROLE = "configuration"
_REGISTRY = declared_table("torchtitan")
_FILE = "config_registry.py"
#: Frameworks that state the settings of their files themselves.
_WITH_SETTINGS = ("torchtitan",)
_SUFFIXES = (".toml", ".yaml", ".yml", ".json")


def framework_claims(
    line: LaunchLine, words: Sequence[Word], tree: Tree
) -> tuple[tuple[Claim, ...], tuple[Reference, ...]]:
    """Return the settings that a program's arguments override, and references to the configuration files they name.

    Args:
        line: the launch line.
        words: the program and its arguments.
        tree: where files are looked up.
    """
    words = truncate(words, _MAX_WORDS, "arguments of a program")
    frameworks: list[Framework] = []
    references: list[Reference] = []
    for word, target, found in _files(line, words[1:], tree):
        frameworks.extend([found] if found is not None else [])
        references.append(Reference(target, ROLE, word.span, line.scope))
    own = framework_of(text_of(words[0]) or "") if words and not frameworks else None
    framework = own or (frameworks[0] if frameworks else None)
    if framework is None:
        return (), tuple(references)
    references.extend(_find_registered(line, words[1:], tree, framework))
    builder = ClaimBuilder(framework.name, line.scope, line.command.condition)
    given = find_overrides(words[1:])
    for key in framework.keys:
        if key.path in given:
            builder.add_setting(key.quantity, given[key.path], key.read, relation=key.relation)
    if framework.registries:
        # A function of the module makes the configuration, whose keys no released table has.
        module = scan(words[1:], _REGISTRY).last("module")
        builder.add_setting(f"{SETTING_PREFIX}{framework.name}.module", module)
    for path in framework.extended_by:
        builder.add_setting(f"{SETTING_PREFIX}{framework.name}.{path}", given.get(path))
    for path, option in given.items() if framework.settings or framework.name in _WITH_SETTINGS else ():
        builder.add_setting(f"{SETTING_PREFIX}{framework.name}.{path}", option, lambda value: lift(_plain, value))
    return tuple(builder.claims), tuple(references)


def _plain(item: Plain) -> Plain:
    """Return the value of a text in YAML: a number, true or false, or the text."""
    text = str(item)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return int(text)
    except ValueError:
        return item


def model_references(line: LaunchLine, claims: Iterable[Claim], tree: Tree) -> Iterator[Reference]:
    """Yield the `config.json` of each model that a line names as a folder of the tree."""
    for claim in claims:
        for text in texts(claim.value) if claim.quantity == "model_name" else ():
            target = config_of(text, tree, relative(text, line, tree))
            if target is not None:
                yield Reference(target, MODEL_ROLE, claim.span, line.scope)


def _find_registered(line: LaunchLine, words: Sequence[Word], tree: Tree, framework: Framework) -> Iterator[Reference]:
    """Yield the function that `--module llama3 --config llama3_8b` names (torchtitan/config/manager.py, 0.3)."""
    scanned = scan(words, _REGISTRY)
    module, config = scanned.last("module"), scanned.last("config")
    if module is None or config is None or not known_text(module) or not known_text(config).isidentifier():
        return
    flat = known_text(module).replace(".", "/")
    for candidate in (
        *(f"{folder}/{flat}/{_FILE}" for folder in framework.registries),
        f"{flat}/{_FILE}",
        f"{flat}.py",
    ):
        file = file_named(candidate, line, tree)
        if file is not None:
            yield Reference(file.path, f"recipe {known_text(config)}", config.span, line.scope)
            return


def _files(line: LaunchLine, words: Sequence[Word], tree: Tree) -> Iterator[tuple[Word, str, Framework | None]]:
    """Yield every word that names a configuration file, with its path and its framework; None if the framework is
    unknown.
    """
    for word in words:
        for text in texts(word.value):
            path = text.rpartition("=")[2] if text.startswith("-") else text
            file = file_named(path, line, tree) if path.lower().endswith(_SUFFIXES) else None
            source = source_of(file) if file is not None else None
            if file is not None and (source is not None or _is_settings(file)):
                yield word, file.path, source.framework if source is not None else None


#: Kinds of files that have readers of their own wherever a line names them.
_OTHER_KINDS = (AccelerateSource(), DeepSpeedSource(), FrameworkConfigSource(), TrainerConfigSource())


def _is_settings(file: SourceFile) -> bool:
    """Return whether a file has the settings of a training of no known framework, and is of no other kind."""
    if not TrainingSettingsSource().recognises(file):
        return False
    return not any(source.recognises(file) for source in _OTHER_KINDS)


_KEY = re.compile(r"(?P<sign>\+\+|\+|--)?(?P<key>[A-Za-z_][\w-]{0,80}(?:\.[\w-]{1,80}){0,8})(?P<equals>=)?")


#: The batch size of a rank in the configurations of Paddle's suites: `-o Train.loader.batch_size_per_card=32`.
_BATCH_SIZE = re.compile(
    r"(?:\w+\.)*(?:global|(?:data_?loader\.)?train(?:_?reader|_?dataset)?|runner)\.(?:\w+\.)*(?:train_)?batch_?size(?:_per_card)?",
    re.IGNORECASE,
)
_DEVICES = ("trainer.devices", "trainer.gpus")
_NODES = "trainer.num_nodes"
#: Also a name that the trainer does not have, such as trainer.num_devices.
_COUNT_OF_TRAINER = re.compile(r"trainer\.\w*(?:device|gpu|node)\w*")
_TASK_STARTERS = ("srun", "mpirun", "horovodrun", "jsrun", "aprun")


def state_overrides(builder: ClaimBuilder, line: LaunchLine, words: Sequence[Word], tree: Tree) -> None:
    """Add claims for the nodes, processes and batch sizes that the overrides of a program set, and the processes that
    the file of LightningCLI sets.
    """
    found = find_overrides(words)
    state_options(builder, "overrides", found.get)
    batches = [given for key, given in found.items() if _BATCH_SIZE.fullmatch(key)]
    builder.add_setting("given_batch_size", batches[0] if len(batches) == 1 else None, as_int)
    nodes = found.get(_NODES)
    builder.add_setting("nodes", nodes, as_int, relation=Relation.REQUIRES)
    devices = next((found[key] for key in _DEVICES if key in found), None)
    alone = is_python(line.words) and not any(wrapper in _TASK_STARTERS for wrapper in line.wrappers)
    relation = Relation.SETS if alone else Relation.REQUIRES
    builder.add_setting("processes_per_node", devices, as_devices, relation=relation)
    for word, counts in _files_of_counts(words, line, tree) if alone and devices is None else ():
        value = next((counts[key] for key in _DEVICES if key in counts), None)
        if value is not None:
            builder.add("processes_per_node", as_devices(value), word, f"--config {word.spelling}")


def starts_ranks(words: Sequence[Word], line: LaunchLine, tree: Tree | None) -> bool:
    """Return whether the arguments, or the LightningCLI file among them, make Lightning start several
    processes.
    """
    found = find_overrides(words)
    given: dict[str, Value] = {}
    for _, counts in _files_of_counts(words, line, tree):
        given.update(counts)
    given.update({key: found[key].value for key in found if _COUNT_OF_TRAINER.fullmatch(key)})
    return any(
        (known_number(as_int(value) if key == _NODES else as_devices(value)) or 0) > 1 for key, value in given.items()
    )


def _files_of_counts(
    words: Sequence[Word], line: LaunchLine, tree: Tree | None
) -> Iterator[tuple[Word, dict[str, Value]]]:
    """Yield the files of `--config` that LightningCLI parses, with their numbers of devices and nodes."""
    for option, word in itertools.pairwise(words) if tree is not None else ():
        path = text_of(word)
        if text_of(option) in ("--config", "-c") and path and path.endswith((".yaml", ".yml")):
            counts = _counts_in(file_named(path, line, tree))
            if counts:
                yield word, counts


def _counts_in(file: SourceFile | None) -> dict[str, Value]:
    """Return the numbers of devices and nodes in a file that LightningCLI parses."""
    source = source_of(file) if file is not None else None
    if file is None or source is None or source.name != "lightning":
        return {}
    root = document_of(file).root
    members = {key: root.member(*key.split(".")) for key in (*_DEVICES, _NODES)} if root else {}
    return {key: value_of(member.node) for key, member in members.items() if member is not None}


def find_overrides(words: Sequence[Word]) -> dict[str, GivenOption]:
    """Return the settings by dotted key, with underscores for hyphens; the last of several counts.

    `a.b=2`, `++a.b=2`, `--a.b=2` and `--a.b 2` set `a.b`. `--a.b` followed by another option is a switch. A key without
    a dot counts only in the form `key=2`.
    """
    found: dict[str, GivenOption] = {}
    for index, word in enumerate(words):
        text = known_prefix(word)
        match = _KEY.match(text)
        if match is None or not (match["equals"] or match["sign"] == "--"):
            continue
        key = match["key"].replace("-", "_")
        if match["equals"]:
            if "." in key or match["sign"] != "--":
                found[key] = GivenOption(key, value_after(word, match.end()), word.span, word.spelling)
        elif "." in key and match.end() == len(text):
            value = words[index + 1] if index + 1 < len(words) else None
            if value is None or known_prefix(value).startswith("--"):
                found[key] = GivenOption(key, Known(True), word.span, word.spelling)
            else:
                found[key] = _with_value(word, value)
    return found
