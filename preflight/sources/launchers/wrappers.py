"""Programs before a launcher: `srun`, `env`, `timeout 10`, `docker run ... image`, `conda run -n x`, ...

Each is removed with its own options, so that the remaining words begin with the program it starts.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from preflight._util import toml
from preflight.model.job import Known, Unresolved, Value
from preflight.sources.base import Command, LaunchLine, Tree, Variable, Word
from preflight.sources.configs.line_files import variables_in
from preflight.sources.launchers import mpi, slurm
from preflight.sources.launchers.mpi import app_contexts, merged_contexts
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    Table,
    concatenate,
    declared_table,
    file_named,
    is_python,
    known_prefix,
    paths_of,
    python_program,
    scan,
    table,
    text_of,
)
from preflight.sources.shell.lookup import MPI_ALTERNATIVES


class WrapperSyntax(NamedTuple):
    """How to parse one wrapper: a row of `wrappers.toml`, whose head describes the fields."""

    options: Table
    plain: int = 0
    image: bool = False
    host: bool = False
    subcommands: tuple[str, ...] = ()
    exports: str = ""
    passes_environment: bool = True
    variables: bool = False
    separator: str = ""


def _load_syntax() -> dict[str, WrapperSyntax]:
    """Return the syntax of each wrapper by its name."""
    mpirun = WrapperSyntax(mpi.MPI, exports="export")
    found = {
        "srun": WrapperSyntax(slurm.SRUN, exports="export", separator=","),
        **dict.fromkeys(("mpirun", "mpiexec", "orterun", "prterun", *MPI_ALTERNATIVES), mpirun),
        "horovodrun": WrapperSyntax(mpi.HOROVOD),
        "jsrun": WrapperSyntax(mpi.JSRUN, exports="export"),
    }
    for row in toml.beside(__file__, "wrappers.toml")["wrapper"]:
        names, options = row.pop("names"), table(**row.pop("options", {}))
        found.update(dict.fromkeys(names, WrapperSyntax(options, **toml.with_tuples(row))))
    return found


WRAPPER_SYNTAX = _load_syntax()
_PROGRAMS = toml.beside(__file__, "programs.toml")
_PLAIN_NAMES: dict[str, str] = {**dict.fromkeys(MPI_ALTERNATIVES, "mpirun"), **_PROGRAMS["plain-names"]}
_ENV = declared_table("env")
#: Wrappers without options.
_SIMPLE = frozenset(("nohup", "command", "builtin", "setsid", "unbuffer", "catchsegv", "eatmydata", "!"))


#: Commands that mention programs without starting them.
_ONLY_MENTIONS = toml.words(__file__, "words.toml", "only-mention")
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_MAX_WRAPPERS = 12
#: Words searched for a launcher after an unknown prefix.
_MAX_WORDS = 40


class Wrapper(NamedTuple):
    """One program that starts another. `name` is its plain name; `image` is set for containers."""

    name: str
    scanned: ScannedLine
    word: Word
    command: Command
    image: Word | None = None
    host: Word | None = None
    assignments: tuple[Variable, ...] = ()
    #: Whether the program it starts inherits its environment.
    passes_environment: bool = True


class StrippedCommand(NamedTuple):
    """A command line without its wrappers, which are outermost first."""

    words: tuple[Word, ...]
    wrappers: tuple[Wrapper, ...]


def strip_wrappers(command: Command) -> StrippedCommand:
    """Remove the wrappers of `command`; the result also has those of the commands it is inside."""
    wrappers: list[Wrapper] = []
    outer = strip_wrappers(command.outer).wrappers if command.outer is not None else ()
    words = command.words
    for _ in range(_MAX_WRAPPERS):
        taken = _strip_wrapper(words, command)
        if taken is None:
            break
        wrapper, words = taken
        if wrapper is not None:
            wrappers.append(wrapper)
    # The words of `docker run ...` in `ssh host docker run ...` are also those of a command of their own.
    places = {wrapper.word.span for wrapper in wrappers}
    return StrippedCommand(tuple(words), (*(w for w in outer if w.word.span not in places), *wrappers))


def program_name(words: Sequence[Word]) -> str:
    """Return the plain name of the program that the words start; empty if it is unknown."""
    return (text_of(words[0]) or "").rpartition("/")[2] if words else ""


def only_mentions_programs(name: str) -> bool:
    """Return whether the command `name` mentions programs without starting them, as `echo` does."""
    return name in _ONLY_MENTIONS


def _strip_wrapper(words: Sequence[Word], command: Command) -> tuple[Wrapper | None, tuple[Word, ...]] | None:
    if not words:
        return None
    name = program_name(words)
    if name in _SIMPLE:
        return None, tuple(words[1:])
    if name == "env":
        return _strip_env(words, command)
    if name in ("docker", "podman", "docker-compose"):
        words = _without_compose(words, name)
        name = program_name(words)
    tool = _python_tool(words)
    if tool is not None:
        return None, tool
    kind = WRAPPER_SYNTAX.get(name)
    if kind is not None:
        return _strip_known_wrapper(name, kind, words, command)
    return None


#: Options of `docker compose` before its subcommand that take a word.
_COMPOSE_VALUED = ("-f", "--file", "-p", "--project-name", "--profile", "--env-file", "--project-directory")


def _without_compose(words: Sequence[Word], name: str) -> Sequence[Word]:
    """Turn `docker compose -f x run service ...` into `docker run service ...`: a service is an image."""
    at = 1
    if name != "docker-compose":
        if len(words) < 2 or text_of(words[1]) != "compose":
            return words
        at = 2
    while at < len(words) and (text := text_of(words[at]) or "").startswith("-"):
        at += 2 if text in _COMPOSE_VALUED else 1
    first = words[0] if name != "docker-compose" else replace(words[0], value=Known("docker"))
    return (first, *words[at:])


#: Modules that run another module or script in their own process.
_PYTHON_TOOLS = frozenset(
    ("debugpy", "cProfile", "pdb", "coverage", "viztracer", "memray", "scalene", "kernprof", "trace", "line_profiler")
)
_MAX_TOOL_WORDS = 20


def _python_tool(words: Sequence[Word]) -> tuple[Word, ...] | None:
    """Turn `python -m debugpy --listen 5678 -m torch.distributed.run` into `python -m torch.distributed.run`."""
    if len(words) < 4 or not is_python(words):
        return None
    program = python_program(words)
    if program is None or not program.module or text_of(program.words[0]) not in _PYTHON_TOOLS:
        return None
    for index, word in enumerate(program.words[1:_MAX_TOOL_WORDS], start=1):
        text = text_of(word) or ""
        if text == "-m" or text.endswith(".py"):
            return (words[0], *program.words[index:])
    return None


def _strip_known_wrapper(
    name: str, kind: WrapperSyntax, words: Sequence[Word], command: Command
) -> tuple[Wrapper | None, tuple[Word, ...]] | None:
    rest: Sequence[Word] = words[1:]
    if kind.subcommands:
        before = scan(rest, kind.options)
        if not before.rest or text_of(before.rest[0]) not in kind.subcommands:
            return None
        rest = before.rest[1:]
    if _PLAIN_NAMES.get(name, name) == "mpirun":
        first, *others = app_contexts(rest)
        scanned = merged_contexts([scan(words_of, kind.options) for words_of in (first, *others)])
    elif name == "srun":
        scanned = slurm.merged_steps([scan(words_of, kind.options) for words_of in app_contexts(rest)])
    else:
        scanned = scan(rest, kind.options)
    rest = scanned.rest
    leading, rest = _leading_assignments(rest) if kind.variables else ((), rest)
    plain = rest[: kind.plain]
    if len(plain) < kind.plain:
        return None
    exports = [*scanned.every(kind.exports), *scanned.every("variable")] if kind.exports else []
    assignments = [variable for given in exports for variable in _assignments(given, name, command)]
    wrapper = Wrapper(
        name=_plain_name(name, scanned),
        scanned=scanned,
        word=words[0],
        command=command,
        image=plain[0] if kind.image and plain else None,
        host=plain[0] if kind.host and plain else None,
        assignments=(*leading, *assignments),
        passes_environment=kind.passes_environment and not _clears_environment(name, scanned),
    )
    return wrapper, tuple(rest[kind.plain :])


def _plain_name(name: str, scanned: ScannedLine) -> str:
    """Return the name under which a wrapper is known; pdsh to one host counts as ssh, because other lines start the
    other nodes.
    """
    plain = _PLAIN_NAMES.get(name, name)
    if plain in ("pdsh", "clush"):
        hosts = scanned.last("hosts")
        if hosts is not None and isinstance(hosts.value, Known) and not set("[,^@") & set(str(hosts.value.value)):
            return "ssh"
    return plain


def _clears_environment(name: str, scanned: ScannedLine) -> bool:
    """Return whether the options hide the caller's environment from the program: `srun --export=NONE`, `--cleanenv`."""
    export = scanned.last("export")
    if name == "srun" and export is not None:
        names = exported_names(export)
        return names is not None and "ALL" not in names and names != [""]
    return scanned.last("cleanenv") is not None


def exported_names(given: GivenOption) -> list[str] | None:
    """Return the names in `srun --export=A=$A,B`, whatever their values are; None if a name is not known."""
    names = []
    for first, *rest in _split_parts(given.parts or (given.value,), ","):
        name, equals, _ = str(first.value).partition("=") if isinstance(first, Known) else ("", "", "")
        if not isinstance(first, Known) or (rest and not equals):
            return None
        names.append(name)
    return names


#: Words of `srun --export` that name no variable.
_NO_VARIABLES = frozenset(("ALL", "NONE", "NIL", ""))


def _assignments(given: GivenOption, engine: str, command: Command) -> Iterator[Variable]:
    """Yield the variables of `-x NAME=value`, `-x NAME` (its value here), `-genv NAME value` or `--env A=1,B=2`."""
    separator = WRAPPER_SYNTAX[engine].separator
    parts = given.parts or (given.value,)
    if isinstance(given.value, Known):
        text = str(given.value.value)
        is_pair = given.dest == "variable" and " " in text
        parts = (Known(text.replace(" ", "=", 1) if is_pair else text),)
    # Container engines split a list only where it has several equals signs (pflag, StringToString); srun always.
    one = (
        separator
        and engine != "srun"
        and sum(str(part.value).count("=") for part in parts if isinstance(part, Known)) == 1
    )
    groups = _split_parts(parts, "" if one else separator)
    for first, *rest in groups:
        name, equals, value = str(first.value).partition("=") if isinstance(first, Known) else ("", "", "")
        if equals:
            pieces = [*([Known(value)] if value or not rest else []), *rest]
            spelling = "".join(str(part.value) if isinstance(part, Known) else "..." for part in (first, *rest))
            if len(groups) == 1 and rest:
                spelling = given.spelling.partition(" ")[2] or given.spelling
            yield Variable(name, concatenate(pieces), given.span, spelling)
        elif not rest and name not in _NO_VARIABLES:
            variable = command.environment.get(name)
            if variable is not None:
                yield variable


def _split_parts(parts: Sequence[Value], separator: str) -> list[list[Value]]:
    """Split the pieces of a value at a separator."""
    groups: list[list[Value]] = [[]]
    for part in parts:
        before, *after = str(part.value).split(separator) if separator and isinstance(part, Known) else (part,)
        groups[-1].append(Known(before) if isinstance(before, str) else before)
        groups.extend([Known(text)] for text in after)
    return groups


def _strip_env(words: Sequence[Word], command: Command) -> tuple[Wrapper | None, tuple[Word, ...]]:
    scanned = scan(words[1:], _ENV)
    split = scanned.last("split")
    before = _split_words(split) if split is not None else []
    variables, rest = _leading_assignments((*before, *scanned.rest))
    wrapper = Wrapper(
        "env", scanned, words[0], command, assignments=variables, passes_environment=scanned.last("clean") is None
    )
    return wrapper, rest


def _leading_assignments(words: Sequence[Word]) -> tuple[tuple[Variable, ...], tuple[Word, ...]]:
    """Return the variables that words of the form `NAME=value` set, and the words after them."""
    variables: list[Variable] = []
    for word in words:
        match = _ASSIGNMENT.match(known_prefix(word))
        if match is None:
            break
        text = text_of(word)
        unknown = word.value if isinstance(word.value, Unresolved) else Unresolved("unknown")
        value = Known(text[match.end() :]) if text is not None else unknown
        variables.append(Variable(match[1], value, word.span, word.spelling))
    return tuple(variables), tuple(words[len(variables) :])


def _split_words(given: GivenOption) -> list[Word]:
    """Return the words of `env -S "A=1 torchrun"`."""
    try:
        pieces = shlex.split(str(given.value.value)) if isinstance(given.value, Known) else []
    except ValueError:
        pieces = []
    return [Word(Known(piece), given.span, piece) for piece in pieces]


#: Prefixes of the caller's variables that Apptainer sets in the container without the prefix.
_CONTAINER_PREFIXES = ("SINGULARITYENV_", "APPTAINERENV_")


def environment_of(command: Command, wrappers: Sequence[Wrapper], tree: Tree | None = None) -> dict[str, Variable]:
    """Return the variables that the started program sees: the command's own, with those that wrappers add or clear.

    Args:
        command: the command, with the variables that its first wrapper sees.
        wrappers: its wrappers, outermost first. Those of outer commands only add variables.
        tree: where the files of `--env-file` are looked up; without it they are not read.
    """
    seen: dict[str, Variable] = dict(command.environment)
    for wrapper in wrappers:
        prefixed = _prefixed_variables(seen) if wrapper.name == "apptainer" else {}
        if not wrapper.passes_environment and wrapper.command is command:
            seen.clear()
        seen.update(prefixed)
        for variable in _file_variables(wrapper, tree) if tree is not None else ():
            # uv leaves a variable that is set; containers take the one of the file.
            if wrapper.image is not None or variable.name not in seen:
                seen[variable.name] = variable
        for variable in wrapper.assignments:
            seen[variable.name] = variable
    return seen


def passed_environment(command: Command, tree: Tree) -> tuple[Mapping[str, Variable], frozenset[str]] | None:
    """Return the variables that the wrappers of this one command pass on, and the names that their options set; None
    without wrappers.
    """
    own = [wrapper for wrapper in strip_wrappers(command).wrappers if wrapper.command is command]
    if not own:
        return None
    named = frozenset(variable.name for wrapper in own for variable in wrapper.assignments)
    return environment_of(command, own, tree), named


def _prefixed_variables(seen: Mapping[str, Variable]) -> dict[str, Variable]:
    return {
        name.removeprefix(prefix): replace(variable, name=name.removeprefix(prefix))
        for prefix in _CONTAINER_PREFIXES
        for name, variable in seen.items()
        if name.startswith(prefix)
    }


def _file_variables(wrapper: Wrapper, tree: Tree) -> Iterator[Variable]:
    """Yield the variables in the files of `--env-file`."""
    line = LaunchLine("", wrapper.command.words, wrapper.command)
    for given in wrapper.scanned.every("env_file"):
        for path in paths_of(given.value, given.parts):
            file = file_named(path, line, tree)
            if file is not None:
                yield from variables_in(file)


def _begins_arguments(word: Word) -> bool:
    """Return whether a word may follow a launcher: an option, a script, or an unknown word."""
    text = text_of(word)
    return text is None or text.startswith("-") or text.endswith(".py")


#: Launchers whose names also occur as values of other programs' options.
_AMBIGUOUS_NAMES = frozenset(("deepspeed", "ds", "accelerate", "composer", "paddle", "ray"))
#: The subcommands with which a launcher starts ranks; without one of them it does something else.
_SUBCOMMANDS: dict[str, list[str]] = _PROGRAMS["subcommands"]


def find_launcher(words: Sequence[Word], is_launcher: Callable[[str], bool]) -> int | None:
    """Return the index of a launcher after an unknown prefix (`$PREFIX torchrun ...`, `./wrap.sh torchrun ...`), or
    None.
    """
    if not words or only_mentions_programs(program_name(words)) or program_name(words) in WRAPPER_SYNTAX:
        return None
    words = words[:_MAX_WORDS]
    for index in range(1, len(words)):
        name = posixpath.basename(text_of(words[index]) or "")
        if name in _AMBIGUOUS_NAMES and (text_of(words[index - 1]) or "").startswith("--"):
            # `--backend deepspeed`: the value of an option.
            continue
        follows = words[index + 1] if index + 1 < len(words) else None
        subcommands = _SUBCOMMANDS.get(name)
        if subcommands is not None and (follows is None or text_of(follows) not in subcommands):
            continue
        if is_launcher(name) and follows is not None and (subcommands is not None or _begins_arguments(follows)):
            return index
        if (text_of(words[index]) or "").endswith(".py") and index + 1 < len(words):
            return None
        if follows is not None and is_python(words[index:]):
            text = text_of(follows) or ""
            if text in ("-m", "-u") or text.endswith(".py"):
                return index
    return None


#: Words searched for a launcher after srun and its options.
_MAX_DEFAULT_WORDS = 30


def with_default(words: Sequence[Word], is_launcher: Callable[[str], bool]) -> tuple[Word, ...]:
    """Replace the first word that may be a launcher set by the caller with the words of its default.

    In `${LAUNCHER:-torchrun --nproc_per_node=8} train.py` the launcher is read as its default, because otherwise
    nothing on the line could be read. Counts of that form stay unresolved, because users set them.
    """
    for index, word in enumerate(words[:_MAX_DEFAULT_WORDS]):
        default = word.origin.default if word.origin is not None else None
        if default is None:
            continue
        try:
            pieces = shlex.split(default)
        except ValueError:
            continue
        if pieces and is_launcher(posixpath.basename(pieces[0])):
            return (*words[:index], *(_default_word(piece, word) for piece in pieces), *words[index + 1 :])
    return tuple(words)


def _default_word(text: str, whole: Word) -> Word:
    value: Value = Unresolved(f"{text} in the default of {whole.spelling}") if "$" in text else Known(text)
    return Word(value, whole.span, text)
