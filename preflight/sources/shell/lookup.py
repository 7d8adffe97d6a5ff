"""Looks up a name: a variable of the script, one that Slurm sets, or a recognised run-time value."""

from __future__ import annotations

from preflight.model.job import Known
from preflight.model.job.symbols import FIRST_ALLOCATED_HOST, RUNTIME_VARIABLES, Symbol, expanded_in_script
from preflight.sources.base import FROM_CALLER, Command
from preflight.sources.shell import sbatch_directives
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.shell_document import Place, Text
from preflight.sources.shell.state import Kind, Slot, State, element_of, text_slot
from preflight.sources.shell.words import Field, computed_text, hole, is_count, literal

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
    """Whether a command starts other commands as tasks of a job, which then have a rank."""
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
        if symbol in _TASK_RANKS and not any(_starts_tasks(command) for command in machine.outer_commands):
            why = expanded_in_script(symbol)
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
    why = {"?": "the status of the last command", "$": "a process id", "!": "a process id"}.get(name, f"${name}")
    return hole(why, place, spelling)


def allocated_nodes(machine: Machine, state: State, place: Place, spelling: str) -> Text:
    """The number of hosts in the allocation, from the `#SBATCH` header when there is one."""
    header = sbatch_directives.header_of(machine.directives)
    found = sbatch_directives.slurm_variable(header, "SLURM_NNODES", machine.main_file.path) if header.present else None
    if isinstance(found, tuple):
        return computed_text(found, place, spelling)
    return hole(Symbol.ALLOCATED_HOST_COUNT.value, place, spelling)
