"""What stands in front of a launcher: `srun`, `env`, `timeout 10`, `docker run ... image`, `conda run -n x` ...

Each wrapper is taken off with its own options, so that what is left begins with the program it starts.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence

from preflight.job import Known, Unresolved
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command, Variable, Word
from preflight.sources.launchers.options import Given, Scanned, glue, head, scan, text_of
from preflight.sources.launchers.programs import is_python
from preflight.sources.launchers.wrapper_tables import ENV, KINDS, PLAIN_NAMES, SIMPLE, Kind

#: Commands that name programs without starting them.
_TALK = frozenset(
    [
        "echo",
        "printf",
        "which",
        "type",
        "pip",
        "pip3",
        "apt",
        "apt-get",
        "grep",
        "egrep",
        "rg",
        "awk",
        "sed",
        "cat",
        "less",
        "tail",
        "head",
        "pkill",
        "killall",
        "pgrep",
        "kill",
        "ps",
        "git",
        "wget",
        "curl",
        "export",
        "alias",
        "read",
        "test",
        "[",
        "[[",
        "cd",
        "mkdir",
        "rm",
        "cp",
        "mv",
        "ls",
        "ln",
        "touch",
        "chmod",
        "tee",
        "set",
        "unset",
        "trap",
        "wait",
        "sleep",
        "module",
        "ml",
        "source",
        ".",
        "man",
        "help",
        "nvidia-smi",
        "find",
        "rsync",
        "scp",
        "tar",
    ]
)
_ASSIGNMENT = lazy_pattern(r"([A-Za-z_][A-Za-z0-9_]*)=")
_DEEPEST = 12
#: A launcher behind an unknown prefix is looked for among this many words.
_FARTHEST = 40


@dataclass(frozen=True, slots=True)
class Wrapper:
    """One program in front of another. `name` is its plain name; `image` is set for containers."""

    name: str
    scanned: Scanned
    word: Word
    command: Command
    image: Word | None = None
    host: Word | None = None
    assignments: tuple[Variable, ...] = ()
    #: Whether the environment in front of it reaches what it starts.
    passes_environment: bool = True


@dataclass(frozen=True, slots=True)
class Peeled:
    """A command line without its wrappers; `wrappers` are outermost first."""

    words: tuple[Word, ...]
    wrappers: tuple[Wrapper, ...]


def peel(command: Command) -> Peeled:
    """Take the wrappers off `command`, after those of the commands it stands inside."""
    wrappers: list[Wrapper] = []
    if command.outer is not None:
        wrappers.extend(peel(command.outer).wrappers)
    words = command.words
    for _ in range(_DEEPEST):
        taken = _one(words, command)
        if taken is None:
            break
        wrapper, words = taken
        if wrapper is not None:
            wrappers.append(wrapper)
    return Peeled(tuple(words), tuple(wrappers))


def program_name(words: Sequence[Word]) -> str:
    """The plain name of the program the words start, empty when it is unknown."""
    return (text_of(words[0]) or "").rpartition("/")[2] if words else ""


def only_talks(name: str) -> bool:
    """Whether this command mentions programs instead of starting them."""
    return name in _TALK


def _one(words: Sequence[Word], command: Command) -> tuple[Wrapper | None, tuple[Word, ...]] | None:
    if not words:
        return None
    name = program_name(words)
    if name in SIMPLE:
        return None, tuple(words[1:])
    if name == "env":
        return _env(words, command)
    kind = KINDS.get(name)
    if kind is not None:
        return _wrapper(name, kind, words, command)
    return None


def _wrapper(
    name: str, kind: Kind, words: Sequence[Word], command: Command
) -> tuple[Wrapper | None, tuple[Word, ...]] | None:
    rest: Sequence[Word] = words[1:]
    if kind.subcommands:
        before = scan(rest, kind.options)
        if not before.rest or text_of(before.rest[0]) not in kind.subcommands:
            return None
        rest = before.rest[1:]
    scanned = scan(rest, kind.options)
    rest = scanned.rest
    plain = rest[: kind.plain]
    if len(plain) < kind.plain:
        return None
    exports = [*scanned.every(kind.exports), *scanned.every("variable")] if kind.exports else []
    assignments = tuple(_assignment(given, command) for given in exports)
    wrapper = Wrapper(
        name=PLAIN_NAMES.get(name, name),
        scanned=scanned,
        word=words[0],
        command=command,
        image=plain[0] if kind.image and plain else None,
        host=plain[0] if kind.host and plain else None,
        assignments=tuple(variable for variable in assignments if variable is not None),
        passes_environment=kind.passes_environment and not _cleans(scanned),
    )
    return wrapper, tuple(rest[kind.plain :])


def _cleans(scanned: Scanned) -> bool:
    export = scanned.last("export")
    if export is not None and isinstance(export.value, Known):
        first = str(export.value.value).split(",")[0]
        return first != "ALL" and first != "" and "export" in export.spelling
    return scanned.last("cleanenv") is not None


def _assignment(given: Given, command: Command) -> Variable | None:
    """`-x NAME=value`, `-x NAME` (the value it has here) or `-genv NAME value`."""
    if not isinstance(given.value, Known):
        first = given.parts[0] if given.parts else None
        name, equals, value = str(first.value).partition("=") if isinstance(first, Known) else ("", "", "")
        if not equals:
            return None
        pieces = [*([Known(value)] if value else []), *given.parts[1:]]
        return Variable(name, glue(pieces), given.span, given.spelling.partition(" ")[2] or given.spelling)
    text = str(given.value.value)
    if given.dest == "variable" and " " in text:
        text = text.replace(" ", "=", 1)
    name, equals, value = text.partition("=")
    if not equals:
        return command.variables.get(name) or command.environment.get(name)
    return Variable(name, Known(value), given.span, text)


def _env(words: Sequence[Word], command: Command) -> tuple[Wrapper | None, tuple[Word, ...]]:
    scanned = scan(words[1:], ENV)
    rest = list(scanned.rest)
    variables: list[Variable] = []
    while rest:
        match = _ASSIGNMENT.match(head(rest[0]))
        if match is None:
            break
        word = rest.pop(0)
        text = text_of(word)
        value = Known(text[match.end() :]) if text is not None else Unresolved(getattr(word.value, "why", "unknown"))
        variables.append(Variable(match[1], value, word.span, word.spelling))
    wrapper = Wrapper(
        "env",
        scanned,
        words[0],
        command,
        assignments=tuple(variables),
        passes_environment=scanned.last("clean") is None,
    )
    return wrapper, tuple(rest)


def environment_of(command: Command, wrappers: Sequence[Wrapper]) -> dict[str, Variable]:
    """The variables the started program sees: the command's own and those the wrappers add, clear or keep back."""
    seen: dict[str, Variable] = dict(command.environment)
    for wrapper in wrappers:
        if not wrapper.passes_environment and wrapper.command is command:
            seen.clear()
        for variable in wrapper.assignments:
            seen[variable.name] = variable
    return seen


def _begins_arguments(word: Word) -> bool:
    """Whether this may stand behind a launcher: an option, a script, or something unknown."""
    text = text_of(word)
    return text is None or text.startswith("-") or text.endswith(".py")


#: Launchers whose names are also values of other programs' options.
_WORDS = frozenset(("deepspeed", "ds", "accelerate", "composer", "paddle", "ray"))
_RAY = ("start", "job")


def find_launcher(words: Sequence[Word], is_launcher: Callable[[str], bool]) -> int | None:
    """Where a launcher stands behind a prefix nobody knows (`$PREFIX torchrun ...`, `./wrap.sh torchrun ...`)."""
    if not words or only_talks(program_name(words)) or program_name(words) in KINDS:
        return None
    words = words[:_FARTHEST]
    for index in range(1, len(words)):
        name = posixpath.basename(text_of(words[index]) or "")
        if name in _WORDS and (text_of(words[index - 1]) or "").startswith("--"):
            # `--backend deepspeed`: the value of an option.
            continue
        if name == "ray" and text_of(words[index + 1] if index + 1 < len(words) else words[index]) not in _RAY:
            continue
        if is_launcher(name) and index + 1 < len(words) and _begins_arguments(words[index + 1]):
            return index
        if (text_of(words[index]) or "").endswith(".py") and index + 1 < len(words):
            return None
        if index + 1 < len(words) and is_python(words[index:]):
            follows = text_of(words[index + 1]) or ""
            if follows in ("-m", "-u") or follows.endswith(".py"):
                return index
    return None
