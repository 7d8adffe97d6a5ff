"""What a source is: it takes one file's text, or one command line, and states claims.

Sources run nothing and open nothing themselves: whatever further file they need they ask the `Tree` for, which
keeps them inside the root, to regular files, and below the size limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Protocol

from preflight.job import (
    WHOLE_JOB,
    Claim,
    Launch,
    Note,
    Reference,
    Scope,
    Span,
    Suppression,
    Unresolved,
    Value,
)
from preflight.lazy.dataclasses import dataclass


class SourceError(Exception):
    """A source met something it has no answer to; the engine turns it into a note with the file's name."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as read. `text` is decoded UTF-8 with undecodable bytes replaced; `path` is relative to the root."""

    path: str
    text: str
    sha256: str
    size_bytes: int


class Tree(Protocol):
    """The files a source may look at."""

    def read(self, path: str) -> SourceFile | Note:
        """The file at `path` (relative to the root), or a note that says why it cannot be had."""
        ...

    def resolve(self, path: str, *, relative_to: str) -> str | None:
        """`path`, as written in the file `relative_to`, as a path relative to the root; None when outside.

        Tried from the directory of `relative_to` and from the root, in this order; where neither exists the
        first is returned.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """All that one source has to say about one file (or one command line)."""

    claims: tuple[Claim, ...] = ()
    launches: tuple[Launch, ...] = ()
    references: tuple[Reference, ...] = ()
    notes: tuple[Note, ...] = ()
    suppressions: tuple[Suppression, ...] = ()
    #: Files the input writes itself, for whoever follows its references.
    written: tuple[WrittenFile, ...] = ()


class Source(Protocol):
    """Reads one kind of file."""

    name: str

    def recognises(self, file: SourceFile) -> bool:
        """Whether this looks like a file of this kind, by name and a look at its head. Cheap."""
        ...

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the file's claims in `scope`; `role` is how it was referred to (`config`, `hostfile` ...).

        Never raises for bad input: a malformed file gives a located note and whatever claims could be had.
        """
        ...


@dataclass(frozen=True, slots=True)
class Word:
    """One word of an evaluated command line.

    `many` says that an unresolved word may stand for any number of words (an unquoted or array expansion).
    `parts` are the pieces of a word made of several (`--endpoint=$HOST:6000`), in order, so that what is known
    of an unresolved word can still be read; empty for a word in one piece.
    """

    value: Value
    span: Span
    spelling: str
    many: bool = False
    parts: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class Variable:
    """A shell variable as a command sees it."""

    name: str
    value: Value
    span: Span
    spelling: str
    exported: bool = True
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Directive:
    """One `#SBATCH` option: `--nodes=4`, `-N 4`; `value` is None for a bare flag."""

    option: str
    value: str | None
    span: Span
    spelling: str


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command after abstract evaluation.

    Args:
        words: the command and its arguments, arrays spread out, in order.
        environment: variables the command will see (exported ones and its own prefix assignments).
        variables: all shell variables at that point, exported or not.
        condition: the branch it stands in, in the script's words; empty = runs always.
        outer: for a command inside `srun bash -c '...'`, `bash run.sh` or `ssh host '...'`, the outer command.
        repeated: stands in a loop that could not be unrolled.
        directory: where it runs, relative to the root, when a `cd` before it could be followed; else None.
        prelude: set-up lines before it (`module load`, `conda activate`, `source venv/bin/activate`), as written.
        background: ends in `&`, so that nothing sees how it ends unless somebody waits for it by its id.
        pipe: the program at the end of the pipe it stands in (`tee`), whose status the shell takes for its own.
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


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file the script itself writes before it launches (`cat > ds_config.json <<EOF`), all of it known.

    `path` is relative to the root; `span` is the text as it stands in the script.
    """

    path: str
    text: str
    span: Span
    condition: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """What a shell script comes to: every command it would run, in order, inner ones behind their outer one."""

    path: str
    commands: tuple[Command, ...] = ()
    directives: tuple[Directive, ...] = ()
    final: Mapping[str, Variable] = field(default_factory=dict)
    references: tuple[Reference, ...] = ()
    notes: tuple[Note, ...] = ()
    written: tuple[WrittenFile, ...] = ()


class LauncherReader(Protocol):
    """Reads the command line of one launcher.

    `names` are the program names it answers to (`torchrun`); modules behind `python -m` are listed as
    `-m torch.distributed.run`.
    """

    name: str
    names: tuple[str, ...]

    def read(self, line: LaunchLine, tree: Tree) -> Reading:
        """State the claims of the launcher's own part of the line (wrappers were stripped)."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchLine:
    """A launcher's command line, without the wrappers in front of it (srun, env, time, nohup ...)."""

    launch_id: str
    words: tuple[Word, ...]
    command: Command
    wrappers: tuple[str, ...] = ()

    @property
    def scope(self) -> Scope:
        """The scope of everything this line claims."""
        return Scope(launch=self.launch_id)


NO_VALUE = Unresolved("the option stands last and has no value")
