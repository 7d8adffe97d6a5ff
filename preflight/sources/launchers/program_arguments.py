"""The arguments of a launched program: those that are its inputs, and every one of a framework's program as a setting.

Names are the options without leading dashes, with `_` for `-` (`tensor_model_parallel_size`, `actor.num_nodes`). A
number is stated as one, a switch as true, several values as a tuple. Sources: megatron/training/arguments.py of
Megatron-LM 0.16, openrlhf/cli/train_ppo_ray.py of OpenRLHF 0.11.
"""

from __future__ import annotations

import functools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from preflight._util.budget import truncate
from preflight._util.secret_names import is_secret
from preflight.model.job import Claim, Known, Plain, Relation, Unresolved, Value, as_int, lift
from preflight.model.job.quantities import SETTING_PREFIX
from preflight.sources.base import LaunchLine, SourceFile, Tree, Variable, Word
from preflight.sources.launchers.claim_builder import ClaimBuilder, Setting, option_setting, variable_setting
from preflight.sources.launchers.option_parser import (
    GivenOption,
    Option,
    ScannedLine,
    Table,
    join_spans,
    known_prefix,
    relative,
    scan,
    texts,
)
from preflight.sources.python.program_inputs import Input, ProgramInputs, program_inputs
from preflight.sources.value_readers import as_text

_TEXTS = frozenset(("master_addr", "ps_role"))
_REQUIRED = frozenset(("world_size", "ps_workers"))


def program_claims(line: LaunchLine, path: str, words: Sequence[Word], tree: Tree) -> tuple[Claim, ...]:
    """State the rank, sizes and endpoint that the words and variables of a launch pass to a program.

    Args:
        line: the launch line.
        path: the program, relative to the root.
        words: its arguments.
        tree: looks up the program.
    """
    file = tree.read(path) if path.endswith(".py") else None
    if not isinstance(file, SourceFile):
        return ()
    inputs = program_inputs(file, tree)
    builder = ClaimBuilder("arguments", line.scope, line.command.condition)
    for item, setting in _settings(inputs, words, line.command.environment):
        relation = Relation.REQUIRES if item.quantity in _REQUIRED else Relation.SETS
        builder.add_setting(item.quantity, setting, functools.partial(_convert, item), relation=relation)
    return tuple(builder.claims)


def gives_rank(path: str | None, words: Sequence[Word], environment: Mapping[str, Variable], tree: Tree) -> bool:
    """Whether a line passes the program its rank or role, by an option or a variable that the program itself reads."""
    file = tree.read(path) if path is not None and path.endswith(".py") else None
    if not isinstance(file, SourceFile):
        return False
    inputs = program_inputs(file, tree)
    if not any(item.quantity in ("rank", "ps_index", "node_rank") for item in inputs.inputs):
        return False
    given = {item.quantity for item, _ in _settings(inputs, words, environment)}
    return bool(given & {"rank", "ps_index"}) or ("node_rank" in given and "world_size" in given)


def _settings(
    inputs: ProgramInputs, words: Sequence[Word], environment: Mapping[str, Variable]
) -> list[tuple[Input, Setting]]:
    found: list[tuple[Input, Setting]] = []
    scanned = _scan_options(inputs, words) if any(item.kind == "option" for item in inputs.inputs) else None
    for item in inputs.inputs:
        setting: Setting | None = None
        if item.kind == "variable":
            setting = variable_setting(environment.get(item.name))
        elif item.kind == "word":
            at = int(item.name) - 1
            if at < len(words) and not any(word.many for word in words[: at + 1]):
                setting = option_setting(_plain(item.name, words[at]))
        elif scanned is not None:
            setting = option_setting(scanned.last(item.name) or _by_position(item.name, inputs, scanned))
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
    """The claims of a program's arguments; none if they are not Megatron-LM's, or those of an old or altered copy.

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
    """The folders around the file of the line, up to the root, and the folder of each program it may start."""
    yield from (str(folder).removeprefix(".") for folder in PurePosixPath(line.command.span.path).parents)
    for word in program:
        for path in texts(word.value):
            target = relative(path, line, tree)
            if target is not None and posixpath.dirname(target):
                yield posixpath.dirname(target)


def _parsers_of_its_own(folder: str, tree: Tree) -> list[SourceFile]:
    """The parsers of Megatron-LM's options in a folder, if they are of a release that is unknown or old."""
    files = [tree.read(posixpath.join(folder, path)) for path in _PARSERS]
    parsers = [file for file in files if isinstance(file, SourceFile) and _reads_options(file)]
    release = tree.read(posixpath.join(folder, _RELEASE_FILE)) if parsers else None
    match = _RELEASE.search(release.text) if isinstance(release, SourceFile) else None
    return parsers if match is None or (int(match[1]), int(match[2])) < _KNOWN_RELEASE else []


def _reads_options(file: SourceFile) -> bool:
    return "'--num-layers'" in file.text.replace('"', "'")


def option_claims(framework: str, line: LaunchLine, words: Sequence[Word]) -> tuple[Claim, ...]:
    """The claims of a program's arguments, which are those of a framework.

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
            if word.many or isinstance(word.value, Unresolved):
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
        builder.add(key, value, word.span, word.spelling)
        return
    if not values:
        builder.add(key, Known(True), word.span, word.spelling)
        return
    found: Value
    hidden = next((item for item in values if item.many or _holds_options(item)), None)
    if hidden is not None:
        # `--bf16 $EXTRA_ARGS` may also be `--bf16`, with further options.
        _state_hidden(builder, hidden)
        builder.add(key, Unresolved(f"`{hidden.spelling}`"), word.span, word.spelling)
        return
    if len(values) == 1:
        found = lift(_scalar, values[0].value)
    else:
        found = lift(lambda *items: tuple(_scalar(item) for item in items), *(item.value for item in values))
    spelling = " ".join((word.spelling, *(item.spelling for item in values)))
    builder.add(key, found, join_spans(word.span, values[-1].span), spelling)


def _holds_options(word: Word) -> bool:
    """Whether a variable that is not known holds options rather than a value, as its name says."""
    return isinstance(word.value, Unresolved) and _OPTIONS_NAMED.fullmatch(word.spelling) is not None


def _state_hidden(builder: ClaimBuilder, word: Word) -> None:
    builder.add(f"{SETTING_PREFIX}{builder.source}.(call)", Unresolved("further arguments"), word.span, word.spelling)


def _scalar(item: Plain) -> str | int | float | bool | None:
    """The text as a number, or as it is written."""
    text = str(item)
    if _NUMBER.fullmatch(text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return text
