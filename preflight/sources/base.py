"""The source protocol: a source takes one file's text, or one command line, and states claims.

Sources run nothing and open nothing themselves: they request further files from the `Tree`, which restricts them to
regular files inside the root and below the size limit.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Protocol, TypeAlias

from preflight._util.redaction import redact, secret_pieces
from preflight._util.secret_names import is_plain, is_secret
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Launch,
    Note,
    Places,
    Reference,
    Scope,
    Span,
    Suppression,
    Unresolved,
    Value,
)

#: The role of a file with all settings of a run, which is looked up but read only by a source that knows its form.
SETTINGS = "settings"
#: The role of such a file that the started script reads itself, and gives its values their meaning.
OWN_SETTINGS = "own settings"
#: The role of a module of whose functions a followed run of a script calls some.
REACHED = "reached"


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as read. `text` is decoded UTF-8 with undecodable bytes replaced; `path` is relative to the root."""

    path: str
    text: str
    sha256: str
    size_bytes: int


class Tree(Protocol):
    """The files that a source may read."""

    def read(self, path: str) -> SourceFile | Note:
        """Return the file at `path` (relative to the root), or a note with the reason why it cannot be read."""
        ...

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """Return `path`, as written in the file `relative_to`, as a path relative to the root; None if it is outside
        the root.

        Tried from the directory of `relative_to` and from the root, in this order; if neither exists the first is
        returned.
        """
        ...

    def names(self, folder: str) -> tuple[str, ...]:
        """Return the entries of a folder (relative to the root), sorted by name; a folder's name ends in `/`.

        Empty if the folder does not exist. Hidden entries and links are skipped.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that one source states about one file (or one command line)."""

    claims: tuple[Claim, ...] = ()
    launches: tuple[Launch, ...] = ()
    references: tuple[Reference, ...] = ()
    notes: tuple[Note, ...] = ()
    suppressions: tuple[Suppression, ...] = ()
    #: Files that the input itself writes, in order, for resolving its references.
    written: tuple[WrittenFile, ...] = ()
    #: The number of commands that ran before each launch, by the launch's id.
    numbers: Mapping[str, int] = field(default_factory=dict)

    def joined(self, other: Reading) -> Reading:
        """Return a reading that also has the claims, launches, references and notes of another one."""
        return replace(
            self,
            claims=(*self.claims, *other.claims),
            launches=(*self.launches, *other.launches),
            references=(*self.references, *other.references),
            notes=(*self.notes, *other.notes),
        )


class Source(Protocol):
    """Reads one kind of file."""

    name: str

    def recognises(self, file: SourceFile) -> bool:
        """Return whether the file looks like one of this source, judged by its name and its first bytes. Must be
        fast.
        """
        ...

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """Return the file's claims in `scope`; `role` is how another file refers to it (`config`, `hostfile` ...).

        Never raises for bad input: a malformed file gives a located note and as many claims as possible.
        """
        ...


class UnknownKind(enum.Enum):
    """The kinds of unknown text that a reader treats differently from others."""

    #: A variable or argument that the caller of the script sets; no file does.
    CALLER = "caller"
    #: A variable that the caller sets in some cases only: otherwise the script stops or sets it itself.
    SOMETIMES_CALLER = "sometimes caller"
    #: Text that something replaces before the file is used.
    PLACEHOLDER = "placeholder"
    #: The path of an installed program: `$(which torchrun)`.
    PROGRAM_PATH = "program path"
    #: The output of a command that is not evaluated.
    COMMAND_OUTPUT = "command output"


@dataclass(frozen=True, slots=True)
class UnknownOrigin:
    """The origin of an unknown text.

    Args:
        kind: who or what supplies the text.
        default: the text of `${NAME:-default}`, as written, used if the caller sets nothing; None if there is no
            default.
        program: the name of the program whose path it is.
        variable: the variable that the caller sets; empty for other texts. It does not affect equality.
    """

    kind: UnknownKind
    default: str | None = None
    program: str = ""
    variable: str = field(default="", compare=False)


FROM_CALLER = UnknownOrigin(UnknownKind.CALLER)


def caller_origin(variable: str) -> UnknownOrigin:
    """Return the origin of a variable that only the caller sets; it equals `FROM_CALLER`."""
    return UnknownOrigin(UnknownKind.CALLER, variable=variable)


@dataclass(frozen=True, slots=True)
class Word:
    """One word of an evaluated command line.

    Args:
        value: the text.
        span: where it is written.
        spelling: the word as the user wrote it.
        many: whether an unresolved word may stand for any number of words (an unquoted or array expansion).
        parts: the pieces of a word made of several (`--endpoint=$HOST:6000`), in order, so that the known part of an
            unresolved word can still be read; empty for a word in one piece.
        origin: where an unresolved word comes from, if any reader depends on it.
    """

    value: Value
    span: Span
    spelling: str
    many: bool = False
    parts: tuple[Value, ...] = ()
    origin: UnknownOrigin | None = None


@dataclass(frozen=True, slots=True)
class Variable:
    """A shell variable as a command sees it."""

    name: str
    value: Value
    span: Span
    spelling: str
    exported: bool = True
    condition: str = ""
    origin: UnknownOrigin | None = None


@dataclass(frozen=True, slots=True)
class Directive:
    """One `#SBATCH` option: `--nodes=4`, `-N 4`; `value` is None for a bare flag."""

    option: str
    value: str | None
    span: Span
    spelling: str


#: Programs that return while the program they start continues.
_DETACHED = frozenset(("tmux", "screen", "sbatch", "qsub", "bsub"))
#: Options of ssh that take a value (ssh(1) of OpenSSH 9).
SSH_VALUES = frozenset("BbcDEeFIiJLlmOopQRSWw")
#: Programs that submit a script as a batch job of its own.
SUBMITTERS = frozenset(("sbatch", "qsub", "bsub"))


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command after abstract evaluation.

    Args:
        words: the command and its arguments, arrays spread out, in order.
        environment: variables the command will see (exported ones and its own prefix assignments).
        variables: all shell variables at that point, exported or not.
        condition: the condition of the branch that contains it, as written in the script; empty if it always runs.
        outer: for a command inside `srun bash -c '...'`, `bash run.sh` or `ssh host '...'`, the outer command.
        repeated: whether it is in a loop that could not be unrolled.
        directory: where it runs, relative to the root, if a preceding `cd` could be followed; otherwise None.
        prelude: setup lines before it (`module load`, `conda activate`, `source venv/bin/activate`), as written.
        background: whether it ends in `&`, so that its exit status is lost unless the script waits for its id.
        pipe: the program at the end of its pipe (`tee`), whose status the shell uses instead.
        started_at: where the functions and shells around it are called or started, outermost first.
        positional: the parameters `1`, `2`, ... of the function or script around it, each with the location of its
            argument.
        number: the number of commands that ran before it.
        is_elsewhere: whether it runs in a directory that is not known, after a `cd`.
    """

    words: tuple[Word, ...]
    span: Span
    environment: Mapping[str, Variable] = field(default_factory=dict)
    variables: Mapping[str, Variable] = field(default_factory=dict)
    condition: str = ""
    outer: Command | None = None
    repeated: bool = False
    directory: str | None = None
    prelude: tuple[Word, ...] = ()
    background: bool = False
    pipe: str = ""
    started_at: tuple[Span, ...] = ()
    positional: Mapping[str, Variable] = field(default_factory=dict)
    number: int = 0
    is_elsewhere: bool = False

    @property
    def concurrent(self) -> bool:
        """Return whether later commands run at the same time, because it or its starting command runs in the
        background.
        """
        return self.background or self.detached or (self.outer is not None and self.outer.concurrent)

    @property
    def submitter(self) -> str:
        """Return the program that submits the batch job which the command is part of; empty if it is the script's
        own.
        """
        current: Command | None = self.outer
        while current is not None:
            name = current.words[0].value if current.words else None
            plain = str(name.value).rpartition("/")[2] if isinstance(name, Known) else ""
            if plain in SUBMITTERS:
                return plain
            current = current.outer
        return ""

    @property
    def detached(self) -> bool:
        """Return whether the command starts something and returns: in its own terminal, as a submission, or by
        `ssh -f`.
        """
        words = [str(word.value.value) if isinstance(word.value, Known) else "" for word in self.words]
        name = words[0].rpartition("/")[2] if words else ""
        return name in _DETACHED or (name == "ssh" and _is_in_background(words[1:]))


def _is_in_background(words: Sequence[str]) -> bool:
    """Return whether an option before the host sends ssh into the background."""
    takes_word = False
    for word in words:
        if takes_word:
            takes_word = False
            continue
        if not word.startswith("-"):
            return False
        for at, letter in enumerate(word[1:], start=2):
            if letter == "f":
                return True
            if letter in SSH_VALUES:
                takes_word = at == len(word)
                break
    return False


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that the script itself writes (`cat > ds_config.json <<EOF`).

    `path` is relative to the root; `text` is None unless all of it is known; `span` is the location of the text in the
    script; `condition` is the branch that writes it.
    """

    path: str
    text: str | None
    span: Span
    condition: str = ""
    #: The number of commands that ran before.
    number: int = 0


@dataclass(frozen=True, slots=True)
class Script:
    """The evaluation of a shell script: every command it would run, in order; inner commands follow their outer one."""

    path: str
    commands: tuple[Command, ...] = ()
    directives: tuple[Directive, ...] = ()
    final: Mapping[str, Variable] = field(default_factory=dict)
    references: tuple[Reference, ...] = ()
    notes: tuple[Note, ...] = ()
    written: tuple[WrittenFile, ...] = ()
    #: The last components of the paths that it writes, whatever their content.
    produced: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """A launcher's command line, without the wrappers before it (srun, env, time, nohup ...)."""

    launch_id: str
    words: tuple[Word, ...]
    command: Command
    wrappers: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        """Return the scope of all claims of this line."""
        return Scope(launch=self.launch_id)


#: States the claims of a launcher's own part of a line.
LauncherReader: TypeAlias = Callable[[LaunchLine, Tree], Reading]
NO_VALUE = Unresolved("the option is the last word and has no value")


# `# preflight: ignore[ID, name] reason`, in any language whose comments last to the end of the line.


_MARK = re.compile(r"(#|//)[ \t]*preflight:[ \t]*ignore\b[ \t]*(?:\[([^\]\n]*)\])?[ \t:]*([^\n]*)")
#: Directives of schedulers.
_DIRECTIVES = ("#SBATCH", "#PBS", "#BSUB", "#$ ", "#COBALT", "#flux:", "# flux:")
_SEPARATOR = re.compile(r"[,\s]+")
#: The number of comments that are used in one file, and of lines that one comment or all of them may cover.
_MAX_COMMENTS = 1000
_MAX_LINES = 20_000
_MAX_NAMES = 100
#: The rest of a longer line is not searched for a comment.
_MAX_LINE_LENGTH = 16_384
#: Files without these words are not searched line by line.
_WORD = "preflight:"


def suppressions(file: SourceFile, *, signs: tuple[str, ...] = ("#",)) -> tuple[Suppression, ...]:
    """Return every suppression comment of a file whose comments begin with one of `signs` (`#`, `//`).

    At the end of a line of code it applies to that line; alone on its line, to the next line that is neither blank nor
    a comment. A command continued over several lines by backslashes cannot contain a comment, so one above it or at its
    end applies to all its lines: there is one suppression for each of them, with the comment's span and its own line
    first. Without brackets it has no names and suppresses nothing; the engine reports it as unused.
    """
    text = file.text
    if _WORD not in text:
        return ()
    lines = text.split("\n")
    found: list[Suppression] = []
    offset = code = comments = 0
    places = Places(file.path, text)
    for number, line in enumerate(lines, start=1):
        match = _mark(line, signs) if _WORD in line[:_MAX_LINE_LENGTH] else None
        if match is not None:
            alone = not line[: match.start()].strip()
            if alone and code <= number:  # otherwise comment lines follow each other, and apply to the same line
                code = _next_code(lines, number, signs)
            about = code if alone and code <= len(lines) else number
            names = tuple(dict.fromkeys(name for name in _SEPARATOR.split(match.group(2) or "") if name))[:_MAX_NAMES]
            span = places.span(offset + match.start(), offset + len(line.rstrip("\r")))
            speaks_of = _continued_lines(lines, about)
            comments += 1
            if comments > _MAX_COMMENTS or len(found) + len(speaks_of) > _MAX_LINES:
                # This comment names no rule, so it suppresses nothing and is reported.
                found.append(Suppression(file.path, number, (), match.group(3).strip(), span))
                return tuple(found)
            found.extend(Suppression(file.path, each, names, match.group(3).strip(), span) for each in speaks_of)
        offset += len(line) + 1
    return tuple(found)


def _mark(line: str, signs: tuple[str, ...]) -> re.Match[str] | None:
    """Return the comment on a line, unless it is in a string."""
    match = next((found for found in _MARK.finditer(line[:_MAX_LINE_LENGTH]) if found.group(1) in signs), None)
    return None if match is None or _is_quoted(line, match.start(), signs) else match


def _next_code(lines: list[str], number: int, signs: tuple[str, ...]) -> int:
    """Return the first line after line `number` that is code; one after the last if there is none."""
    for index in range(number, len(lines)):
        stripped = lines[index].strip()
        # A scheduler directive is a comment to the shell and often the subject of a finding.
        if stripped and (not stripped.startswith(signs) or stripped.startswith(_DIRECTIVES)):
            return index + 1
    return len(lines) + 1


def _continued_lines(lines: list[str], number: int) -> list[int]:
    """Return line `number`, followed by the other lines of its command, which backslashes join."""
    first = last = number
    while first > 1 and lines[first - 2].rstrip("\r").endswith("\\"):
        first -= 1
    while last < len(lines) and lines[last - 1].rstrip("\r").endswith("\\"):
        last += 1
    return [number, *(each for each in range(first, last + 1) if each != number)]


def _is_quoted(line: str, at: int, signs: tuple[str, ...]) -> bool:
    """Return whether the character at `at` is inside a string that began on this line."""
    quote = ""
    index = 0
    while index < at:
        sign = line[index]
        if sign == "\\" and quote != "'":
            index += 1
        elif quote:
            quote = "" if sign == quote else quote
        elif sign in "'\"":
            quote = sign
        elif line.startswith(signs, index) and (index == 0 or line[index - 1] in " \t;"):
            return False
        index += 1
    return bool(quote)


# Assumptions about the environment from which a job is submitted.
#
# Variables that the user sets for a run (`--set NNODES=4`) have these values. Others are unknown; a plan may assume
# that they are not set, so that `${NNODES:-2}` has its default.


_VARIABLES: ContextVar[Mapping[str, str]] = ContextVar("given", default=MappingProxyType({}))
#: Variables assumed not to be set, each with its default; None if nothing is assumed.
_ASSUMED: ContextVar[dict[str, str] | None] = ContextVar("assumed", default=None)
#: Whether this is assumed of every variable, also of those that differ between nodes, or that a platform sets.
_OF_ALL: ContextVar[bool] = ContextVar("of_all", default=True)
_NOT_ASSUMED: ContextVar[frozenset[str]] = ContextVar("not_assumed", default=frozenset())
_OF_A_NODE = re.compile(
    r"RANK|ADDR|HOST|PORT|MASTER|IFNAME|WORLD_SIZE|(?:^|_)(?:IPS?|NODES?_?LIST|(?:NODE|TASK|JOB|PROC|LOCAL)_?ID|INDEX)(?:_|$)"
    r"|^\d+$|^(?:SLURM|OMPI|PMIX?|PET|PBS|LSB|SGE|KUBERNETES|CUDA|HIP|ROCR|PADDLE|POD)_",
    re.IGNORECASE,
)


@contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set these variables in the environment of scripts that are read inside the block."""
    token = _VARIABLES.set(dict(variables))
    try:
        yield
    finally:
        _VARIABLES.reset(token)


def given_variables(path: str) -> dict[str, Variable]:
    """Return the variables that a script starts with."""
    place = Span(path, 1, 1, 1, 1)
    return {
        name: Variable(name, Known(value), place, f"--set {name}={redact(name, value)}")
        for name, value in _VARIABLES.get().items()
    }


def given_secrets() -> frozenset[str]:
    """Return the secrets among the variables, each as its `secret_pieces`, because a script may have used them
    anywhere.
    """
    named = (value for name, value in _VARIABLES.get().items() if is_secret(name) and not is_plain(name, value))
    return frozenset(piece for value in named for piece in secret_pieces(value))


@contextmanager
def defaults_assumed(*, of_all: bool = True, without: frozenset[str] = frozenset()) -> Iterator[dict[str, str]]:
    """Treat variables that no script assigns as unset if the script has a default; yields the assumptions.

    Args:
        of_all: whether this includes variables that differ between nodes or that a platform sets, and arguments of
            scripts; otherwise these stay unknown.
        without: variables that are set, so that a program that has a default for them does not use it.
    """
    assumed: dict[str, str] = {}
    tokens = _ASSUMED.set(assumed), _OF_ALL.set(of_all), _NOT_ASSUMED.set(without)
    try:
        yield assumed
    finally:
        _ASSUMED.reset(tokens[0])
        _OF_ALL.reset(tokens[1])
        _NOT_ASSUMED.reset(tokens[2])


def is_assuming() -> bool:
    """Return whether defaults are assumed already."""
    return _ASSUMED.get() is not None


def assume_not_set(name: str, default: str) -> bool:
    """Return whether a variable that the caller may set is treated as unset; records the assumption."""
    assumed = _ASSUMED.get()
    if assumed is None or name in _NOT_ASSUMED.get() or not (_OF_ALL.get() or not differs_between_nodes(name)):
        return False
    assumed.setdefault(name, default)
    return True


def differs_between_nodes(name: str) -> bool:
    """Return whether a variable has, by its name, a value for each node, or one that a platform sets."""
    return _OF_A_NODE.search(name) is not None


def assume_nothing_given(name: str) -> bool:
    """Return whether a variable that a script tests and assigns is treated as unset. A plan leaves it undecided."""
    return not _OF_ALL.get() and assume_not_set(name, "")
