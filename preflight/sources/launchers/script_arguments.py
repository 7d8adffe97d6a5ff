"""The training program that a launcher starts, and the claims of its arguments: its inputs, options of many scripts,
the model's shape, paths.

Names are the options without leading dashes, with `_` for `-` (`tensor_model_parallel_size`, `actor.num_nodes`). A
number is stated as one, a switch as true, several values as a tuple. Sources: megatron/training/arguments.py of
Megatron-LM 0.16, openrlhf/cli/train_ppo_ray.py of OpenRLHF 0.11.

Only options whose meaning does not depend on the script are read: DeepSpeed's own, Megatron-LM's parallel and batch
sizes (megatron/training/arguments.py, core_r0.12), and Hugging Face's `TrainingArguments` (transformers 4.50).

Options of Megatron-LM (megatron/training/arguments.py, core_r0.12, and Megatron-DeepSpeed) and of programs that name a
published model. Number formats and other options of Hugging Face's trainer are in `trainer_arguments`.

Only options with the same meaning in every known program are read: Megatron-LM (megatron/training/arguments.py,
core_r0.12), Hugging Face's trainer (`--output_dir`), and the usual names in users' own scripts. `--checkpoint_dir` and
`--ckpt_path` are not among them: some programs read from it, and others write to it.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import (
    Claim,
    Known,
    Launch,
    Plain,
    Reference,
    Relation,
    Unresolved,
    Value,
    as_int,
    lift,
    one_of,
)
from preflight.model.job.value import SETTING_PREFIX
from preflight.sources.base import (
    OWN_SETTINGS,
    SETTINGS,
    LaunchLine,
    Reading,
    SourceFile,
    Tree,
    UnknownKind,
    Variable,
    Word,
)
from preflight.sources.hydra.run_config import claims_of, run_config
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    state_options,
    variable_setting,
)
from preflight.sources.launchers.framework_arguments import (
    argument_framework,
    framework_claims,
    model_references,
    rl_claims,
    state_overrides,
    trainer_claims,
)
from preflight.sources.launchers.option_parser import (
    GivenOption,
    Option,
    ScannedLine,
    Table,
    console_script,
    declared_table,
    end_of_path,
    file_named,
    file_references,
    join_spans,
    known_prefix,
    known_text,
    module_path,
    named_values,
    paths_of,
    python_program,
    relative,
    scan,
    script_at,
    text_of,
    texts,
)
from preflight.sources.python.program_inputs import Input, ProgramInputs, program_inputs
from preflight.sources.value_readers import READERS, as_text

_TEXTS = frozenset(("master_addr", "ps_role"))
_REQUIRED = frozenset(("world_size", "ps_workers"))


def program_claims(line: LaunchLine, path: str, words: Sequence[Word], tree: Tree) -> tuple[Claim, ...]:
    """Return claims about the rank, sizes and endpoint that the words and variables of a launch pass to a program.

    Args:
        line: the launch line.
        path: the program, relative to the root.
        words: its arguments.
        tree: looks up the program.
    """
    file = script_at(path, tree)
    if file is None:
        return ()
    inputs = program_inputs(file, tree)
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    for item, setting in _settings(inputs, words, line.command.environment):
        relation = Relation.REQUIRES if item.quantity in _REQUIRED else Relation.SETS
        builder.add_setting(item.quantity, setting, functools.partial(_convert, item), relation=relation)
    return tuple(builder.claims)


def gives_rank(path: str | None, words: Sequence[Word], environment: Mapping[str, Variable], tree: Tree) -> bool:
    """Return whether a line passes the program its rank or role, by an option or a variable that the program itself
    reads.
    """
    file = script_at(path, tree)
    if file is None:
        return False
    inputs = program_inputs(file, tree)
    if not any(item.quantity in ("rank", "ps_index", "node_rank") for item in inputs.inputs):
        return False
    given = {item.quantity for item, _ in _settings(inputs, words, environment)}
    return bool(given & {"rank", "ps_index"}) or ("node_rank" in given and "world_size" in given)


def _settings(
    inputs: ProgramInputs, words: Sequence[Word], environment: Mapping[str, Variable]
) -> list[tuple[Input, GivenOption]]:
    found: list[tuple[Input, GivenOption]] = []
    scanned = _scan_options(inputs, words) if any(item.kind == "option" for item in inputs.inputs) else None
    for item in inputs.inputs:
        setting: GivenOption | None = None
        if item.kind == "variable":
            setting = variable_setting(environment.get(item.name))
        elif item.kind == "word":
            at = int(item.name) - 1
            if at < len(words) and not any(word.many for word in words[: at + 1]):
                setting = _plain(item.name, words[at])
        elif scanned is not None:
            setting = scanned.last(item.name) or _by_position(item.name, inputs, scanned)
        if setting is not None:
            found.append((item, setting))
    return found


def _scan_options(inputs: ProgramInputs, words: Sequence[Word]) -> ScannedLine:
    options = {
        name: Option(each.dest, each.takes) for each in inputs.options if not each.positional for name in each.names
    }
    declared = {option.dest for option in options.values()}
    for item in inputs.inputs:
        if item.kind == "option" and item.name not in declared:
            # Declared in another file: the name of the attribute is that of the option.
            options[f"--{item.name}"] = options[f"--{item.name.replace('_', '-')}"] = Option(item.name)
    return scan(words, Table(options, interleaved=True))


def _by_position(name: str, inputs: ProgramInputs, scanned: ScannedLine) -> GivenOption | None:
    positional = [each.dest for each in inputs.options if each.positional]
    if name not in positional or scanned.incomplete:
        return None
    at = positional.index(name)
    return _plain(name, scanned.rest[at]) if at < len(scanned.rest) else None


def _plain(name: str, word: Word) -> GivenOption:
    return GivenOption(name, word.value, word.span, word.spelling, word.parts)


def _convert(item: Input, value: Value) -> Value:
    if item.given:
        return lift(lambda text: dict(item.given).get(str(text), dict(item.given)[""]), value)
    if item.quantity in _TEXTS:
        return as_text(value)
    return as_int(value)


#: Options that show that a line is for Megatron-LM; two or more of them do.
_TELLING = frozenset(
    (
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--num-attention-heads",
        "--num-layers",
        "--micro-batch-size",
        "--max-position-embeddings",
    )
)
_FEWEST = 3
#: More words than this are data.
_MAX_WORDS = 800
_OPTION = re.compile(r"--[A-Za-z][\w.-]{0,80}")
_OPTIONS_NAMED = re.compile(r"\$\{?\w*(?:ARG|OPT|EXTRA|FLAG|MORE|OTHER|PARAM)\w*\}?", re.IGNORECASE)
#: `int` of Python, and so the parser, takes `1_000_000`.
_NUMBER = re.compile(r"-?\d(?:_?\d){0,17}")


#: Options that only Megatron-DeepSpeed has beside those of an older Megatron-LM (megatron/arguments.py of 2025-07).
_OF_DEEPSPEED = frozenset(
    (
        "--deepspeed_config",
        "--ds-sequence-parallel-size",
        "--no-pipeline-parallel",
        "--enable-zbh1-pipeline",
        "--enable-zbh1-exact-semantics",
        "--deepspeed-activation-checkpointing",
    )
)
_DEEPSPEED = "megatron_deepspeed"
#: Where a copy of Megatron-LM, or a program made from one, has its parser; the last is in the program's own folder.
_PARSERS = ("megatron/training/arguments.py", "megatron/arguments.py", "arguments.py")
#: The release of a copy of Megatron-LM. Copies of this and later releases have the options that are known here.
_RELEASE_FILE = "megatron/core/package_info.py"
_RELEASE = re.compile(r"^MAJOR\s*=\s*(\d{1,4})\s+MINOR\s*=\s*(\d{1,4})", re.MULTILINE)
_KNOWN_RELEASE = (0, 12)


def megatron_claims(line: LaunchLine, words: Sequence[Word], tree: Tree) -> tuple[Claim, ...]:
    """Return the claims of a program's arguments; none if they are not Megatron-LM's, or those of an old or altered
    copy.

    Megatron-DeepSpeed is such a copy, and known: its settings are those of `megatron_deepspeed`.

    Args:
        line: the launch line.
        words: the program and its arguments.
        tree: where a copy of Megatron-LM is looked up.
    """
    program, words = words[:1], truncate(words[1:], _MAX_WORDS, "arguments of a program")
    names = [known_prefix(word).partition("=")[0] for word in words]
    if sum(name in _TELLING for name in names) < _FEWEST:
        return ()
    parsers = [parser for folder in _folders(line, program, tree) for parser in _parsers_of_its_own(folder, tree)]
    if any("--ds-sequence-parallel-size" not in parser.text for parser in parsers):
        return ()
    of_deepspeed = bool(parsers) or not _OF_DEEPSPEED.isdisjoint(names)
    return option_claims(_DEEPSPEED if of_deepspeed else "megatron", line, words)


def _folders(line: LaunchLine, program: Sequence[Word], tree: Tree) -> Iterator[str]:
    """Yield the folders around the file of the line, up to the root, and the folder of each program it may start."""
    yield from (str(folder).removeprefix(".") for folder in PurePosixPath(line.command.span.path).parents)
    for word in program:
        for path in texts(word.value):
            target = relative(path, line, tree)
            if target is not None and posixpath.dirname(target):
                yield posixpath.dirname(target)


def _parsers_of_its_own(folder: str, tree: Tree) -> list[SourceFile]:
    """Return the parsers of Megatron-LM's options in a folder, if they are of a release that is unknown or old."""
    files = [tree.read(posixpath.join(folder, path)) for path in _PARSERS]
    declared = re.compile(r"'--num-layers'|\"--num-layers\"")
    parsers = [file for file in files if isinstance(file, SourceFile) and declared.search(file.text)]
    release = tree.read(posixpath.join(folder, _RELEASE_FILE)) if parsers else None
    match = _RELEASE.search(release.text) if isinstance(release, SourceFile) else None
    return parsers if match is None or (int(match[1]), int(match[2])) < _KNOWN_RELEASE else []


#: A file of further arguments.
_ARGUMENT_FILES = (".yaml", ".yml", ".json")


def option_claims(framework: str, line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """Return the claims of a program's arguments, which are those of a framework.

    Args:
        framework: whose settings they are.
        line: the launch line.
        words: the arguments, without the program.
    """
    words = truncate(words, _MAX_WORDS, "arguments of a program")
    builder = ClaimBuilder(framework, line.scope, line.command.condition)
    place = 0
    while place < len(words):
        word = words[place]
        name, equals, _ = known_prefix(word).partition("=")
        place += 1
        if not _OPTION.fullmatch(name):
            if word.many or isinstance(word.value, Unresolved) or name.endswith(_ARGUMENT_FILES):
                _state_hidden(builder, word)
            continue
        values: list[Word] = []
        while not equals and place < len(words) and not known_prefix(words[place]).startswith("--"):
            values.append(words[place])
            place += 1
        if not is_secret(name):
            _state(builder, word, name, values, equals=bool(equals))
    return tuple(builder.claims)


def _state(builder: ClaimBuilder, word: Word, name: str, values: Sequence[Word], *, equals: bool) -> None:
    key = f"{SETTING_PREFIX}{builder.source}.{name[2:].replace('-', '_')}"
    if equals:
        value = lift(lambda item: _scalar(str(item).partition("=")[2]), word.value)
        builder.add(key, value, word)
        return
    if not values:
        builder.add(key, Known(True), word)
        return
    found: Value
    hidden = next((item for item in values if item.many or _holds_options(item)), None)
    if hidden is not None:
        # `--bf16 $EXTRA_ARGS` may also be `--bf16`, with further options.
        _state_hidden(builder, hidden)
        builder.add(key, Unresolved(f"`{hidden.spelling}`"), word)
        return
    if len(values) == 1:
        found = lift(_scalar, values[0].value)
    else:
        found = lift(lambda *items: tuple(_scalar(item) for item in items), *(item.value for item in values))
    spelling = " ".join((word.spelling, *(item.spelling for item in values)))
    builder.add(key, found, join_spans(word.span, values[-1].span), spelling)


def _holds_options(word: Word) -> bool:
    """Return whether an unknown variable contains options rather than a value, judging by its name."""
    return isinstance(word.value, Unresolved) and _OPTIONS_NAMED.fullmatch(word.spelling) is not None


def _state_hidden(builder: ClaimBuilder, word: Word) -> None:
    builder.add(f"{SETTING_PREFIX}{builder.source}.(call)", Unresolved("further arguments"), word)


def _scalar(item: Plain) -> str | int | float | bool | None:
    """Return the text as a number, or as it is written."""
    text = str(item)
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text


_CONFIG = "config"
_OPTIONS = declared_table("script")
_JSON = (".json", ".jsonc", ".hjson")
_YAML = (".yaml", ".yml")


def is_one_of_several(words: Sequence[Word]) -> bool:
    """Return whether a program's arguments make it one of several processes: its own rank and the number of ranks."""
    scanned = scan(words, _OPTIONS)
    return scanned.last("given_rank") is not None and scanned.last("given_world_size") is not None


def argument_claims(
    line: LaunchLine, words: Sequence[Word], tree: Tree
) -> tuple[tuple[Claim, ...], tuple[Reference, ...]]:
    """Return the claims of a program's arguments in the scope of the launch, and the configuration files they name."""
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    references: list[Reference] = []
    scanned = scan(words, _OPTIONS)
    state_options(builder, "script", scanned.last)
    state_overrides(builder, line, words, tree)
    builder.add_setting("process_group_timeout_s", scanned.last("timeout_minutes"), READERS["minutes"])
    builder.add_setting("process_group_timeout_s", scanned.last("timeout_s"), as_int)
    for data in scanned.every("data_path"):
        # Megatron's --data-path may begin with a weight (`0.3 corpus-a 0.7 corpus-b`), which is not a path.
        if not isinstance(data.value, Known) or not _is_number(str(data.value.value)):
            builder.add_setting("data_path", data, as_text)
    references.extend(file_references(scanned.last("deepspeed_config"), _CONFIG, line, tree))
    # `--deepspeed` alone is a switch of other programs; `-m` names the model's configuration of PaddleRec's trainers.
    references.extend(_files_of("--deepspeed", _JSON, _CONFIG, line, words, tree))
    references.extend(_files_of("-m", _YAML, "model", line, words, tree))
    return (*builder.claims, *model_claims(line, words), *path_claims(line, words)), tuple(references)


def _files_of(
    option: str, suffixes: tuple[str, ...], role: str, line: LaunchLine, words: Sequence[Word], tree: Tree
) -> Iterator[Reference]:
    """Yield the references of `OPTION FILE` and `OPTION=FILE`."""
    for name, path, _, place in named_values(words):
        is_file = name == option and path.endswith(suffixes) and not path.startswith("-")
        target = relative(path, line, tree) if is_file else None
        if target is not None:
            yield Reference(target, role, place.span, line.scope)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_MODEL_OPTIONS = declared_table("script-model")


def model_claims(line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """Return the claims of a program's arguments about its model, in the scope of the launch."""
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words, _MODEL_OPTIONS)
    state_options(builder, "script-model", scanned.last)
    _recompute(builder, scanned.last("recompute"), scanned.last("recomputes"), scanned.last("checkpoints"))
    return tuple(builder.claims)


def _recompute(
    builder: ClaimBuilder, granularity: GivenOption | None, selective: GivenOption | None, full: GivenOption | None
) -> None:
    if granularity is not None:
        builder.add_setting("recompute", granularity, as_text)
    elif full is not None:
        builder.add_setting("recompute", full, lambda _: Known("full"))
    elif selective is not None:
        builder.add_setting("recompute", selective, lambda _: Known("selective"))


_PATH_OPTIONS = declared_table("script-paths")
#: Values that are certainly paths, not the name of a model on a hub or the word after a flag.
_IS_PATH = re.compile(r"^(?:/|\./|\.\./|~/|\$)")
_IS_FILE = re.compile(r"\.(?:json|model|txt|vocab|bpe|tiktoken)$")


def path_claims(line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """Return the claims of a program's arguments about its paths, in the scope of the launch."""
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    scanned = scan(words, _PATH_OPTIONS)
    state_options(builder, "script-paths", scanned.last)
    resumed = scanned.last("resume_path")
    # In Hugging Face's trainer `True` means the last checkpoint of its own output folder.
    if resumed is not None and known_text(resumed).lower() not in ("true", "false", "1", "0", "none", "auto"):
        builder.add_setting("resume_path", resumed, as_text)
    for dest, quantity in (("checkpoint_or_flag", "checkpoint_path"), ("resume_or_flag", "resume_path")):
        given = scanned.last(dest)
        if given is not None and "/" in known_text(given):
            builder.add_setting(quantity, given, as_text)
    for given in scanned.every("input_file"):
        if _IS_PATH.search(known_text(given)) or _IS_FILE.search(known_text(given)):
            builder.add_setting("input_file", given, as_text)
    for given in _data_paths(words):
        builder.add_setting("data_path", given, as_text)
    return tuple(builder.claims)


#: Options whose name contains a word for data, and whose value is certainly a path: `--data /corpus`,
#: `--train-root=/imagenet/train`.
_DATA_OPTION = re.compile(
    r"--(?:[a-z]+[-_.])?(?:data|datasets?|corpus|train|training|valid|val|validation|images?|imagenet|records?|shards?)"
    r"(?:[-_.]?(?:path|paths|dir|root|file|files|folder|prefix|location|url))?"
)
#: Options that are read by their spelling (`script_arguments`), and folders that a program writes.
_OTHER_OPTION = re.compile(
    r"--(?:data-path|data_path|train-data|train_data|train-data-path|data_dir|data-dir)$|--.*(?:out|log|save|cache|tmp|result)"
)
_MAX_OPTIONS = 200


def _data_paths(words: Sequence[Word]) -> Iterator[GivenOption]:
    """Yield each option that names data by an absolute or relative path."""
    for name, path, word, place in named_values(words[: _MAX_OPTIONS + 1]):
        if _DATA_OPTION.fullmatch(name) is None or _OTHER_OPTION.match(name) is not None:
            continue
        if _IS_PATH.search(path) and not path.startswith("$"):
            spelling = word.spelling if place is word else f"{name} {place.spelling}"
            yield GivenOption("data_path", Known(path), place.span, spelling)


@dataclass(frozen=True, slots=True)
class StartedProgram:
    """A launch, with the claims and references of the program's arguments."""

    launch: Launch
    claims: tuple[Claim, ...]
    references: tuple[Reference, ...]

    def reading(self, claims: Iterable[Claim] = (), references: Iterable[Reference] = ()) -> Reading:
        """Return the reading of the whole line: what the launcher's own options state, then the program."""
        return Reading((*claims, *self.claims), (self.launch,), (*references, *self.references))

    def of_package(self) -> StartedProgram:
        """Return a copy for a program in an installed package: it names no script of the job."""
        return StartedProgram(
            replace(self.launch, program=""),
            tuple(claim for claim in self.claims if claim.quantity != "script"),
            tuple(reference for reference in self.references if reference.role != "script"),
        )


def read_program(
    line: LaunchLine, launcher: str, words: Sequence[Word], tree: Tree, *, module: bool = False, python: bool = True
) -> StartedProgram:
    """Read `words`, a program and its arguments, as started by `launcher`.

    Args:
        line: the launch line.
        launcher: the name of the launcher.
        words: the program and its arguments.
        tree: where files are looked up.
        module: whether the program is the name of a module.
        python: whether the launcher itself adds the interpreter.
    """
    words = list(words)
    if launcher not in _PLAIN_LAUNCHERS and len(words) > 1 and words[1].value == Known("--"):
        # argparse and click take it for the end of the launcher's own options.
        del words[1]
    if not python:
        words, module = _without_interpreter(words, module)
    words = [*words[:1], *(_with_default_file(word, line, tree) for word in words[1:])]
    program, references = "", []
    builder = ClaimBuilder(launcher, line.scope, line.command.condition)
    if words:
        word = words[0]
        found = [_program(text, line, tree, module=module) for text in paths_of(word.value, word.parts) if text]
        if not found and (file := file_named(end_of_path(word.parts), line, tree)) is not None:
            found = [(file.path, True)]
        # A command without a slash is looked for among the installed ones.
        may_be_installed = not module and "/" not in word.spelling and not word.spelling.endswith(_SCRIPTS)
        is_command = may_be_installed and not python
        if may_be_installed and (installed := console_script(text_of(word) or "", line, tree)):
            found, is_command = [(installed, True)], False
        for path, inside in found if not is_command else ():
            if inside and (len(found) == 1 or isinstance(tree.read(path), SourceFile)):
                references.append(Reference(path, "script", word.span, line.scope, line.command.is_elsewhere))
        program = found[0][0] if len(found) == 1 else ""
        value = one_of(path for path, _ in found) if found else word.value
        builder.add("script", value, word)
    claims, argument_references = argument_claims(line, words[1:], tree)
    trainer, files = trainer_claims(line, words[1:], tree)
    own, configurations = framework_claims(line, words, tree)
    own = (*own, *megatron_claims(line, words, tree))
    if len(references) == 1:
        claims = (*claims, *program_claims(line, references[0].target, words[1:], tree))
    framework = _read_framework(line, words, tree, module=module)
    models = model_references(line, (*claims, *trainer, *framework.claims), tree)
    if framework.starts_ranks and launcher in _PLAIN_LAUNCHERS:
        launcher = framework.starts_ranks
    launch = Launch(
        id=line.launch_id,
        launcher=launcher,
        span=line.words[0].span if line.words else line.command.span,
        wrappers=line.wrappers,
        program=program,
        arguments=tuple(text_of(word) for word in words[1:]),
        condition=line.command.condition,
        started_at=line.command.started_at,
        concurrent=line.command.concurrent,
    )
    return StartedProgram(
        launch,
        (*builder.claims, *claims, *trainer, *own, *framework.claims),
        (
            *references,
            *argument_references,
            *files,
            *configurations,
            *models,
            *framework.references,
            *_settings_of(line, words[1:], tree, OWN_SETTINGS if _reads_own_settings(references, tree) else SETTINGS),
        ),
    )


#: Ends of the names of scripts.
_SCRIPTS = (".py", ".sh", ".bash")
#: Options that name the file with all settings of a run, in many programs.
_SETTINGS = re.compile(r"--?(?:c|cfg|config|configs|config[-_](?:file|path|yaml)|cfg[-_](?:file|path)|recipe|settings)")
#: How a script reads such a file itself.
_READS_SETTINGS = re.compile(r"\b(?:yaml\.(?:\w+_)?load|json\.load|toml(?:i|lib)?\.load)\s*\(")
_SETTINGS_FILE = re.compile(r"\.(?:ya?ml|toml|json)$")


def _reads_own_settings(references: Sequence[Reference], tree: Tree) -> bool:
    """Return whether the one script that a line starts reads files of settings itself."""
    file = tree.read(references[0].target) if len(references) == 1 else None
    return isinstance(file, SourceFile) and _READS_SETTINGS.search(file.text) is not None


def _with_default_file(word: Word, line: LaunchLine, tree: Tree) -> Word:
    """Return a word with the file of settings that it names unless the caller of the script gives another:
    `${1:-a.yaml}`.
    """
    origin = word.origin
    default = origin.default or "" if origin is not None and origin.kind is UnknownKind.CALLER else ""
    file = file_named(default, line, tree) if _SETTINGS_FILE.search(default) else None
    return replace(word, value=Known(default), many=False, origin=None) if file is not None else word


def _settings_of(line: LaunchLine, words: Sequence[Word], tree: Tree, role: str) -> Iterator[Reference]:
    """Yield the existing settings files of a program: unless one of them is read, the job is not understood."""
    for name, path, word, _ in named_values(words):
        is_named = _SETTINGS.fullmatch(name) is not None and _SETTINGS_FILE.search(path) is not None
        file = file_named(path, line, tree) if is_named else None
        if file is not None:
            yield Reference(file.path, role, word.span, line.scope)


@dataclass(frozen=True, slots=True)
class _FrameworkReading:
    """The claims of the program's framework; `starts_ranks` names one whose program starts all ranks itself."""

    claims: tuple[Claim, ...] = ()
    references: tuple[Reference, ...] = ()
    starts_ranks: str = ""


#: Launchers that only run the program: a program that starts all ranks is then the launcher.
_PLAIN_LAUNCHERS = ("python", "srun", "mpirun", "horovodrun", "jsrun")
#: The role of files of a composed configuration; their claims are those of the composition.
COMPOSED = "composed"


def _read_framework(line: LaunchLine, words: Sequence[Word], tree: Tree, *, module: bool) -> _FrameworkReading:
    """Return the claims of the program's configuration, or of its arguments, if a framework's table lists them."""
    if not words:
        return _FrameworkReading()
    word = words[0]
    by_arguments = argument_framework(known_prefix(word), words[1:])
    if by_arguments is not None:
        claims = rl_claims(by_arguments, line, words)
        if known_prefix(word) in by_arguments.own:
            claims = (*claims, *option_claims(by_arguments.name, line, words[1:]))
        return _FrameworkReading(claims, (), by_arguments.name if by_arguments.starts_ranks else "")
    run = run_config(line, words, tree, module=module)
    if run is None:
        return _FrameworkReading()
    claims = claims_of(run, line.scope, line.command.condition, word.span, word.spelling)
    references = tuple(Reference(path, COMPOSED, word.span, line.scope) for path in dict.fromkeys(run.files))
    starts = run.framework.name if run.framework is not None and run.framework.starts_ranks else ""
    return _FrameworkReading(claims, references, starts)


def _program(text: str, line: LaunchLine, tree: Tree, *, module: bool) -> tuple[str, bool]:
    """Return the file that a program's name resolves to, and whether it is inside the root."""
    if module:
        return module_path(text, line, tree), True
    inside = relative(text, line, tree)
    return (text, False) if inside is None else (inside, True)


def _without_interpreter(words: list[Word], module: bool) -> tuple[list[Word], bool]:
    """Remove the interpreter from `python -u train.py`, which the user writes with `--no-python`."""
    if words and re.fullmatch(r"python[\d.]*", posixpath.basename(known_prefix(words[0]))):
        found = python_program(words)
        if found is not None:
            return list(found.words), found.module
    return words, module
