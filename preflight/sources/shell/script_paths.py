"""Resolves paths in a script to files of the tree."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from preflight.sources.base import SourceFile, UnknownKind, UnknownOrigin
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.placeholders import document_of
from preflight.sources.shell.shell_document import Document, Hole, Lit, Place, Text
from preflight.sources.shell.state import State
from preflight.sources.shell.words import Field, hole, known, literal

#: Characters of a file that a command reads from its standard input.
_MAX_CHARACTERS = 100_000


def locate(machine: Machine, state: State, path: str) -> str | None:
    """Resolve `path` as the script uses it, relative to the root; None when it leads outside.

    It is relative to the directory the script has changed to or, when that is unknown, to the script's own directory or
    the root.
    """
    if not path or len(path) > 1000 or "\n" in path or "\x00" in path or path.startswith("~"):
        return None
    here = machine.open_files[-1] if machine.open_files else machine.main_file.path
    if state.directory is not None and not path.startswith("/"):
        joined = posixpath.normpath(posixpath.join(state.directory or ".", path))
        if not joined.startswith("..") and isinstance(machine.tree.read(joined), SourceFile):
            return joined
    return machine.tree.resolve(path, relative_to=here)


def read_file(machine: Machine, state: State, path: str) -> SourceFile | None:
    """Read the file at `path` if the tree has it or the script wrote it."""
    target = locate(machine, state, path)
    if target is None:
        return None
    for written in reversed(machine.written_files):
        if written.path == target:
            return SourceFile(target, written.text, "", len(written.text))
    found = machine.tree.read(target)
    return found if isinstance(found, SourceFile) else None


def written_key(machine: Machine, state: State, path: Text) -> str:
    """The key under which a file that the script writes is stored; the name may be unknown: `job_$RANDOM.sh`."""
    plain = known(path)
    if plain is not None:
        return locate(machine, state, plain) or plain
    return "\0".join(piece.text if isinstance(piece, Lit) else f"\1{piece.spelling}" for piece in path).replace(
        "\0", ""
    )


def file_text(machine: Machine, state: State, path: str, place: Place) -> Text | None:
    """The text of a file that the command at `place` reads, with its location in that file; None when it is unknown."""
    found = read_file(machine, state, path)
    if found is None or len(found.text) > _MAX_CHARACTERS:
        return None
    machine.add_reference(found.path, "data", place)
    document = parsed_document(machine, found)
    return document.slice(0, len(document.text))


def parsed_document(machine: Machine, file: SourceFile) -> Document:
    """The parsed file; each file is parsed once."""
    document = machine.documents.get(file.path)
    if document is None:
        document = machine.documents[file.path] = document_of(file.path, file.text)
    return document


def change_directory(machine: Machine, state: State, path: str | None) -> str | None:
    """The directory after `cd path`, relative to the root; None when it is unknown."""
    if path is None or path.startswith(("~", "/")) or path == "-":
        if path is None or not path.startswith("/"):
            return None
        return machine.tree.resolve(path, relative_to=machine.main_file.path)
    here = machine.open_files[-1] if machine.open_files else machine.main_file.path
    if state.directory is not None:
        joined = posixpath.normpath(posixpath.join(state.directory or ".", path))
    else:
        # A path computed from the script's own location ($(dirname $0)/..) is already relative to the root.
        script_directory = posixpath.dirname(here)
        if script_directory and (path == script_directory or path.startswith(script_directory + "/")):
            joined = posixpath.normpath(path)
        else:
            resolved = machine.tree.resolve(path, relative_to=here)
            if resolved is None:
                return None
            joined = posixpath.normpath(resolved)
    if joined.startswith(".."):
        return None
    return "" if joined == "." else joined


#: Python code that prints the path of a torch launcher: `torch.distributed.run.__file__`, or a composed path.
_LAUNCHER_CODE = re.compile(r"torch\b.*\bdistributed\b.*\b(launch|run)\b", re.DOTALL)
_MAX_WORDS = 12


def path_text(program: str, place: Place, spelling: str) -> Text:
    """The path of an installed program: unknown, but of a known program."""
    origin = UnknownOrigin(UnknownKind.PROGRAM_PATH, program=program)
    return hole(f"where `{program}` is installed", place, spelling, origin=origin)


def looked_up(name: str, words: Sequence[str]) -> str | None:
    """The program whose path a command prints (`which torchrun`), or None; `words` are its arguments."""
    names = [word for word in words if not word.startswith("-")]
    if name == "which" or (name == "command" and words[:1] in (["-v"], ["-V"])) or (name == "type" and "-p" in words):
        return names[-1] if len(names) == 1 else None
    if name.startswith("python") and len(words) == 2 and words[0] == "-c":
        code = _LAUNCHER_CODE.search(words[1])
        return f"site-packages/torch/distributed/{code[1]}.py" if code is not None else None
    return None


def found_programs(fields: list[Field]) -> list[Field]:
    """The words of a command, with each path that was looked up replaced by the program's name."""
    for index, item in enumerate(fields[:_MAX_WORDS]):
        piece = item.text[0] if len(item.text) == 1 else None
        origin = piece.origin if isinstance(piece, Hole) else None
        if piece is not None and origin is not None and origin.kind is UnknownKind.PROGRAM_PATH:
            fields[index] = Field(literal(origin.program, item.place, piece.spelling), item.place)
    return fields
