"""Looks up names: of variables, whether of the script or of Slurm, and of files of the tree."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence

from preflight.model.job import Known
from preflight.model.job.value import FIRST_ALLOCATED_HOST, RUNTIME_VARIABLES, Symbol, expanded_in_script_text
from preflight.sources.base import FROM_CALLER, Command, SourceFile, UnknownKind, UnknownOrigin
from preflight.sources.shell import sbatch_directives
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.parameter_syntax import document_of
from preflight.sources.shell.shell_document import Document, Hole, Lit, Place, Text
from preflight.sources.shell.state import Kind, Slot, State, element_of, text_slot
from preflight.sources.shell.words import Field, computed_text, hole, is_count, known, literal

_TASK_RANKS = frozenset((Symbol.PROCESS_RANK, Symbol.LOCAL_RANK))
#: Other names of Open MPI's, MPICH's and Debian's mpirun.
MPI_ALTERNATIVES = ("mpiexec.hydra", "mpirun.openmpi", "mpiexec.openmpi", "mpirun.mpich", "mpiexec.mpich")
_TASK_STARTERS = frozenset(
    (
        *("srun", "mpirun", "mpiexec", *MPI_ALTERNATIVES),
        *("orterun", "prterun", "jsrun", "aprun", "flux", "ibrun", "sbatch"),
    )
)
#: A starter is among the first words of its command.
_MAX_WORDS = 20
_ALWAYS_SET = frozenset(("RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "HOSTNAME", "HOST", "USER", "HOME"))


def _starts_tasks(command: Command) -> bool:
    """Return whether a command starts other commands as tasks of a job, which then have a rank."""
    return any(
        isinstance(word.value, Known) and str(word.value.value).rpartition("/")[2] in _TASK_STARTERS
        for word in command.words[:_MAX_WORDS]
    )


def look_up(machine: Machine, state: State, name: str, place: Place, spelling: str) -> Slot:
    """Return the variable `name` as used at `place`; a name that the script does not set is set by the caller."""
    slot = state.variables.get(name)
    if slot is not None:
        return slot
    if is_count(name):
        return _argument(machine, state, int(name), place, spelling)
    if name == "BASH_SOURCE":
        path = machine.open_files[-1] if machine.open_files else machine.main_file.path
        return Slot(Kind.ARRAY, place, items=(Field(literal(path, place, spelling), place),))
    if name in ("PWD", "OLDPWD", "SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD", "SGE_O_WORKDIR"):
        if name == "PWD" and state.directory is not None:
            return text_slot(literal(state.directory or ".", place, spelling), place)
        return text_slot(hole(f"${name} is {Symbol.START_DIRECTORY.value}", place, spelling), place)
    if name in ("?", "$", "!", "-", "_", "#"):
        return text_slot(_special(state, name, place, spelling), place)
    if name.startswith("SLURM"):
        header = sbatch_directives.header_of(machine.directives)
        if header.present:
            found = sbatch_directives.slurm_variable(header, name, machine.main_file.path)
            if isinstance(found, tuple):
                return text_slot(computed_text(found, place, spelling), place)
            if found is not None:
                return text_slot(hole(found, place, spelling), place)
    symbol = RUNTIME_VARIABLES.get(name)
    if symbol is not None and (not state.closed or name in _ALWAYS_SET or name.startswith("SLURM")):
        why = symbol.value
        if symbol is Symbol.THIS_HOST and state.batch:
            why = FIRST_ALLOCATED_HOST
        is_of_task = symbol in _TASK_RANKS or (symbol is Symbol.NODE_RANK and state.batch)
        if is_of_task and not any(_starts_tasks(command) for command in machine.outer_commands):
            why = expanded_in_script_text(symbol)
        return text_slot(hole(why, place, spelling), place)
    if state.closed:
        return Slot(Kind.UNSET, place)
    return state.external(name, place, spelling)


def _argument(machine: Machine, state: State, number: int, place: Place, spelling: str) -> Slot:
    if number == 0:
        path = machine.open_files[-1] if machine.open_files else machine.main_file.path
        return text_slot(literal(path, place, spelling), place)
    fields = state.positional.fields
    if fields is None:
        text = hole(f"${number}, which the caller sets", place, spelling, many=True, origin=FROM_CALLER)
        return text_slot(text, place)
    for index, item in enumerate(fields):
        if item.many:
            return text_slot(element_of(item, number - 1 - index), place)
        if index == number - 1:
            return text_slot(item.text, place)
    return Slot(Kind.UNSET, place)


def _special(state: State, name: str, place: Place, spelling: str) -> Text:
    if name == "#":
        fields = state.positional.fields
        if fields is None or any(item.many for item in fields):
            return hole(f"the number of arguments of {state.positional.owner}", place, spelling)
        return literal(str(len(fields)), place, spelling)
    process_id = Symbol.PROCESS_ID.value
    why = {"?": "the status of the last command", "$": process_id, "!": process_id}.get(name, f"${name}")
    return hole(why, place, spelling)


def allocated_nodes(machine: Machine, place: Place, spelling: str) -> Text:
    """Return the number of hosts in the allocation, from the `#SBATCH` header when there is one."""
    header = sbatch_directives.header_of(machine.directives)
    found = sbatch_directives.slurm_variable(header, "SLURM_NNODES", machine.main_file.path) if header.present else None
    if isinstance(found, tuple):
        return computed_text(found, place, spelling)
    return hole(Symbol.ALLOCATED_HOST_COUNT.value, place, spelling)


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
            return None if written.text is None else SourceFile(target, written.text, "", len(written.text))
    found = machine.tree.read(target)
    return found if isinstance(found, SourceFile) else None


def written_key(machine: Machine, state: State, path: Text) -> str:
    """Return the key under which a file that the script writes is stored; the name may be unknown: `job_$RANDOM.sh`."""
    plain = known(path)
    if plain is not None:
        return locate(machine, state, plain) or plain
    return "\0".join(piece.text if isinstance(piece, Lit) else f"\1{piece.spelling}" for piece in path).replace(
        "\0", ""
    )


def file_text(machine: Machine, state: State, path: str, place: Place) -> Text | None:
    """Return the text of a file that the command at `place` reads, with its location in that file; None when it is
    unknown.
    """
    found = read_file(machine, state, path)
    if found is None or len(found.text) > _MAX_CHARACTERS:
        return None
    machine.add_reference(found.path, "data", place)
    document = parsed_document(machine, found)
    return document.slice(0, len(document.text))


def parsed_document(machine: Machine, file: SourceFile) -> Document:
    """Return the parsed file; each file is parsed once."""
    document = machine.documents.get(file.path)
    if document is None:
        document = machine.documents[file.path] = document_of(file.path, file.text)
    return document


def change_directory(machine: Machine, state: State, path: str | None) -> str | None:
    """Return the directory after `cd path`, relative to the root; None when it is unknown."""
    if path is None or path.startswith(("~", "/")) or path == "-":
        if path is None or not path.startswith("/"):
            return None
        return machine.tree.resolve(path, relative_to=machine.main_file.path) or _folder_of_tree(machine, path)
    here = machine.open_files[-1] if machine.open_files else machine.main_file.path
    if state.directory is not None:
        joined = posixpath.normpath(posixpath.join(state.directory or ".", path))
    else:
        # A path computed from the script's own location ($(dirname $0)/..) is already relative to the root, and so is
        # what `pwd` prints.
        script_directory, plain = posixpath.dirname(here), path.removeprefix("./")
        if script_directory and (plain == script_directory or plain.startswith(script_directory + "/")):
            joined = posixpath.normpath(plain)
        else:
            resolved = machine.tree.resolve(path, relative_to=here)
            if resolved is None:
                return None
            joined = posixpath.normpath(resolved)
    if joined.startswith(".."):
        return None
    if joined != "." and not machine.tree.names(joined):
        # A folder that is not in the tree holds it, or is made by the script.
        return _folder_of_tree(machine, joined)
    return "" if joined == "." else joined


def _folder_of_tree(machine: Machine, path: str) -> str | None:
    """Return the folder of the tree that a folder elsewhere holds: the one with the longest end of its path."""
    parts = [part for part in path.split("/") if part]
    ends = ("/".join(parts[start:]) for start in range(1, len(parts)))
    return next((end for end in ends if machine.tree.names(end)), None)


#: Python code that prints the path of a torch launcher: `torch.distributed.run.__file__`, or a composed path.
_LAUNCHER_CODE = re.compile(r"torch\b.*\bdistributed\b.*\b(launch|run)\b", re.DOTALL)
_MAX_LAUNCHER_WORDS = 12


def path_text(program: str, place: Place, spelling: str) -> Text:
    """Return the path of an installed program: unknown, but of a known program."""
    origin = UnknownOrigin(UnknownKind.PROGRAM_PATH, program=program)
    return hole(f"where `{program}` is installed", place, spelling, origin=origin)


def looked_up(name: str, words: Sequence[str]) -> str | None:
    """Return the program whose path a command prints (`which torchrun`), or None; `words` are its arguments."""
    names = [word for word in words if not word.startswith("-")]
    if name == "which" or (name == "command" and words[:1] in (["-v"], ["-V"])) or (name == "type" and "-p" in words):
        return names[-1] if len(names) == 1 else None
    if name.startswith("python") and len(words) == 2 and words[0] == "-c":
        code = _LAUNCHER_CODE.search(words[1])
        return f"site-packages/torch/distributed/{code[1]}.py" if code is not None else None
    return None


def found_programs(fields: list[Field]) -> list[Field]:
    """Return the words of a command, with each path that was looked up replaced by the program's name."""
    for index, item in enumerate(fields[:_MAX_LAUNCHER_WORDS]):
        piece = item.text[0] if len(item.text) == 1 else None
        origin = piece.origin if isinstance(piece, Hole) else None
        if piece is not None and origin is not None and origin.kind is UnknownKind.PROGRAM_PATH:
            fields[index] = Field(literal(origin.program, item.place, piece.spelling), item.place)
    return fields
