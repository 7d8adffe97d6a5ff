"""What a name stands for: a variable of the script, one that Slurm sets, a recognised run-time value."""

from __future__ import annotations

from preflight.job import Known
from preflight.job.symbols import FIRST_ALLOCATED_HOST, RUNTIME_VARIABLES, Symbol, early
from preflight.sources.base import Command
from preflight.sources.shell import slurm
from preflight.sources.shell.document import Place, Text
from preflight.sources.shell.machine import Machine
from preflight.sources.shell.state import Kind, Slot, State, element_of, text_slot
from preflight.sources.shell.text import Field, computed, hole, is_count, literal

_OF_TASKS = frozenset((Symbol.PROCESS_RANK, Symbol.LOCAL_RANK))
_STARTERS = frozenset(
    ("srun", "mpirun", "mpiexec", "mpiexec.hydra", "orterun", "prterun", "jsrun", "aprun", "flux", "ibrun", "sbatch")
)
#: A starter stands among the first words of its command.
_FARTHEST = 20
_ALWAYS_SET = frozenset(("RANDOM", "SRANDOM", "SECONDS", "EPOCHSECONDS", "HOSTNAME", "HOST", "USER", "HOME"))


def _starts_tasks(command: Command) -> bool:
    """Whether a command starts others as tasks of a job, which have a rank."""
    return any(
        isinstance(word.value, Known) and str(word.value.value).rpartition("/")[2] in _STARTERS
        for word in command.words[:_FARTHEST]
    )


def look_up(machine: Machine, state: State, name: str, place: Place, spelling: str) -> Slot:
    """The variable `name` as used at `place`; never fails, unknown ones come from outside."""
    slot = state.variables.get(name)
    if slot is not None:
        return slot
    if is_count(name):
        return _argument(machine, state, int(name), place, spelling)
    if name == "BASH_SOURCE":
        path = machine.reading[-1] if machine.reading else machine.main.path
        return Slot(Kind.ARRAY, place, items=(Field(literal(path, place, spelling), place),))
    if name in ("PWD", "OLDPWD", "SLURM_SUBMIT_DIR", "PBS_O_WORKDIR", "LS_SUBCWD", "SGE_O_WORKDIR"):
        if name == "PWD" and state.directory is not None:
            return text_slot(literal(state.directory or ".", place, spelling), place)
        return text_slot(hole(f"${name} is the directory it is started in", place, spelling), place)
    if name in ("?", "$", "!", "-", "_", "#"):
        return text_slot(_special(state, name, place, spelling), place)
    if name.startswith("SLURM"):
        header = slurm.header_of(machine.directives)
        if header.present:
            said = slurm.variable(header, name, machine.main.path)
            if isinstance(said, tuple):
                return text_slot(computed(said, place, spelling), place)
            if said is not None:
                return text_slot(hole(said, place, spelling), place)
    symbol = RUNTIME_VARIABLES.get(name)
    if symbol is not None and (not state.closed or name in _ALWAYS_SET or name.startswith("SLURM")):
        why = symbol.value
        if symbol is Symbol.THIS_HOST and state.batch:
            why = FIRST_ALLOCATED_HOST
        if symbol in _OF_TASKS and not any(_starts_tasks(command) for command in machine.outer):
            why = early(symbol)
        return text_slot(hole(why, place, spelling), place)
    if state.closed:
        return Slot(Kind.UNSET, place)
    return state.outside(name, place, spelling)


def _argument(machine: Machine, state: State, number: int, place: Place, spelling: str) -> Slot:
    if number == 0:
        path = machine.reading[-1] if machine.reading else machine.main.path
        return text_slot(literal(path, place, spelling), place)
    fields = state.positional.fields
    if fields is None:
        return text_slot(hole(f"${number} comes from outside", place, spelling, many=True), place)
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
    """How many hosts the allocation has: told by the header where there is one."""
    header = slurm.header_of(machine.directives)
    said = slurm.variable(header, "SLURM_NNODES", machine.main.path) if header.present else None
    if isinstance(said, tuple):
        return computed(said, place, spelling)
    return hole(Symbol.ALLOCATED_HOST_COUNT.value, place, spelling)
