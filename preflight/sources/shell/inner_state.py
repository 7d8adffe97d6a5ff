"""The variables that a shell inside another one starts with: those that its wrappers pass on, add or clear."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from preflight.sources.base import SUBMITTERS, Command, SourceFile, Variable
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.inner_shells import CLEARS_ENVIRONMENT, RUNS_ELSEWHERE, InnerShell
from preflight.sources.shell.shell_document import FileText, Place
from preflight.sources.shell.state import Kind, Positional, Slot, State, place_of, slots_from_environment
from preflight.sources.shell.words import Field, literal, skip_characters

#: `srun --export=NAME=value`.
_EXPORTED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")


def inner_state(
    machine: Machine, state: State, inner_shell: InnerShell, fields: Sequence[Field], command: Command, place: Place
) -> State:
    """The state the inner shell starts in: exported variables, with those that its wrappers add or clear."""
    variables: dict[str, Slot] = {}
    if not any(wrapper in CLEARS_ENVIRONMENT for wrapper in inner_shell.wrappers):
        variables = {name: slot for name, slot in state.variables.items() if slot.exported}
    if "sbatch" in inner_shell.wrappers:
        variables = _exported_by_sbatch(variables, fields)
    elif "qsub" in inner_shell.wrappers:
        variables = _exported_by_qsub(variables, fields)
    else:
        variables = _under_wrappers(machine, state, variables, command, fields, place)
    batch = bool(SUBMITTERS.intersection(inner_shell.wrappers)) or (
        state.batch and not any(w in RUNS_ELSEWHERE for w in inner_shell.wrappers)
    )
    return State(
        variables,
        dict(state.functions),
        Positional(inner_shell.arguments, "the inner script"),
        state.directory,
        prelude=state.prelude,
        batch=batch,
        is_elsewhere=state.is_elsewhere,
    )


def state_under_env(state: State, fields: Sequence[Field]) -> State:
    """The state of the shell inside `env -u X A=b command`."""
    changed = state.copy()
    at = 1
    while at < len(fields):
        word = fields[at].known
        text = fields[at].text
        first = getattr(text[0], "text", "") if text else ""
        if word in ("-i", "-", "--ignore-environment"):
            for name, slot in changed.variables.items():
                if slot.exported:
                    changed.export(name, slot.place, exported=False)
        elif word in ("-u", "--unset") and at + 1 < len(fields):
            at += 1
            changed.unset(fields[at].known or "", fields[at].place)
        elif word is not None and word.startswith("-"):
            pass
        elif match := _ASSIGNED.match(first):
            value = skip_characters(text, match.end())
            name = match.group()[:-1]
            changed.put(name, Slot(Kind.TEXT, fields[at].place, value))
            changed.export(name, fields[at].place)
        else:
            break
        at += 1
    return changed


def _under_wrappers(
    machine: Machine,
    state: State,
    variables: dict[str, Slot],
    command: Command,
    fields: Sequence[Field],
    place: Place,
) -> dict[str, Slot]:
    """The variables that the wrappers of one command pass on: `docker run -e A=b`, `mpirun -x A=b`, `--env-file`."""
    passed = machine.passed_environment(command, machine.tree)
    if passed is None:
        return variables
    environment, named = passed
    ends = {
        (word.span.end_line, word.span.end_column): item.place for word, item in zip(command.words, fields, strict=True)
    }
    kept: dict[str, Slot] = {}
    for name, variable in environment.items():
        if variable is not command.environment.get(name):
            at = ends.get((variable.span.end_line, variable.span.end_column)) or _place_of(machine, variable) or place
            kept.update(slots_from_environment({name: variable}, at))
        elif name in variables or name in named:
            kept[name] = state.variables[name]
    return kept


def _place_of(machine: Machine, variable: Variable) -> Place | None:
    """The place of a variable in the file that sets it."""
    file = machine.tree.read(variable.span.path)
    return place_of(variable, FileText(file.path, file.text)) if isinstance(file, SourceFile) else None


def _exported_by_sbatch(variables: dict[str, Slot], fields: Sequence[Field]) -> dict[str, Slot]:
    """The variables that `sbatch --export=NONE` or `--export=ALL,A=b` passes on."""
    for item in fields:
        word = item.known or ""
        if word.startswith("--export="):
            names = word.partition("=")[2].split(",")
            kept = dict(variables) if "ALL" in names else {n: s for n, s in variables.items() if n in names}
            for name in names:
                if match := _EXPORTED.fullmatch(name):
                    text = literal(match.group(2), item.place)
                    kept[match.group(1)] = Slot(Kind.TEXT, item.place, text, exported=True)
            return kept
    return variables


def _exported_by_qsub(variables: dict[str, Slot], fields: Sequence[Field]) -> dict[str, Slot]:
    """The variables that `qsub -v A=b,C` and `qsub -V` pass on."""
    kept = dict(variables) if any(item.known == "-V" for item in fields) else {}
    for before, item in itertools.pairwise(fields):
        if before.known != "-v":
            continue
        for name in (item.known or "").split(","):
            if match := _EXPORTED.fullmatch(name.strip()):
                text = literal(match.group(2), item.place)
                kept[match.group(1)] = Slot(Kind.TEXT, item.place, text, exported=True)
            elif name in variables:
                kept[name] = variables[name]
    return kept
