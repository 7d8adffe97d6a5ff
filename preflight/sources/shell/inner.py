"""Shells inside a command: `bash -c '...'`, `bash run.sh`, `srun ... bash <<EOF`, `ssh host '...'`.

Their commands stand right behind the outer one, which they name as `outer`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from preflight.job import NoteKind
from preflight.lazy.dataclasses import dataclass
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command
from preflight.sources.shell import control, files, heredocs, slurm
from preflight.sources.shell.document import Document, Place, Text
from preflight.sources.shell.machine import DEEPEST, Machine
from preflight.sources.shell.state import Kind, Positional, Slot, State
from preflight.sources.shell.text import Field, after, literal

if TYPE_CHECKING:
    from tree_sitter import Node

SHELLS = frozenset(("bash", "sh", "dash", "zsh", "ksh", "rbash"))
#: Programs that start the command elsewhere without the caller's environment.
_FORGETFUL = frozenset(
    ("ssh", "pdsh", "clush", "kubectl", "docker", "podman", "nvidia-docker", "dsh", "parallel-ssh", "pssh", "pbsdsh")
)
#: Those that start it elsewhere, on every node or not on the batch script's own.
_ELSEWHERE = _FORGETFUL | frozenset(
    (
        "srun",
        "mpirun",
        "mpiexec",
        "orterun",
        "prterun",
        "jsrun",
        "aprun",
        "flux",
        "parallel",
        "ray",
        "salloc",
        "ibrun",
        "mpirun_rsh",
    )
)
#: Programs that start the command behind their own options.
WRAPPERS = _ELSEWHERE | frozenset(
    (
        "env",
        "timeout",
        "nohup",
        "exec",
        "time",
        "nice",
        "ionice",
        "numactl",
        "taskset",
        "sudo",
        "setsid",
        "stdbuf",
        "unbuffer",
        "command",
        "singularity",
        "apptainer",
        "enroot",
        "shifter",
        "xargs",
        "chroot",
        "unshare",
        "nsenter",
        "catchsegv",
        "strace",
        "perf",
        "nsys",
        "ncu",
        "gdb",
        "conda",
        "mamba",
        "micromamba",
        "tmux",
        "screen",
        "script",
        "prun",
        "brun",
        "lsrun",
        "bsub",
        "qsub",
        "horovodrun",
        "mpiexec.hydra",
        "hydra",
    )
)
_PROGRAMS = lazy_pattern(
    r"(python[\d.]*|torchrun|deepspeed|accelerate|paddle\w*|fleetrun|horovodrun|colossalai|composer|pytest|julia|perl)$"
)
_SCRIPT = lazy_pattern(r"[^=]*\.(sh|bash|slurm|sbatch|ksh|run)$")
_SSH_VALUES = frozenset("BbcDEeFIiJLlmOopQRSWw")
#: Programs that run a command on many hosts, each with its options that take a word.
_FANS = {
    "pdsh": "-w -x -f -R -l -t -u -g -M -N",
    "clush": "-w -g -f -x -X -l -t -u -o -m -O --hostfile -R",
    "parallel-ssh": "-h --hosts -H --host -l --user -p --par -o --outdir -e --errdir -t --timeout -O --option -x -X",
    "pssh": "-h --hosts -H --host -l --user -p --par -o --outdir -e --errdir -t --timeout -O --option -x -X",
    "dsh": "-m --machine -g --group -f --file -F --forklimit -r --remoteshell -o",
}
_TERMINALS = frozenset(("tmux", "screen"))
_EXPORTED = lazy_pattern(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
MOST_NESTED = 5


@dataclass(frozen=True, slots=True)
class _Inner:
    """A shell found among a command's words. `text` is its code; `path` the script file instead."""

    text: Text | None
    path: Field | None
    arguments: tuple[Field, ...]
    wrappers: tuple[str, ...]
    reads_input: bool = False
    is_shell: bool = True


def follow(
    machine: Machine,
    state: State,
    document: Document,
    fields: Sequence[Field],
    redirects: Sequence[Node],
    command: Command,
    place: Place,
) -> None:
    """Evaluate the shell a command starts, if it starts one."""
    found = _find(fields, place)
    if found is None:
        return
    if len(machine.outer) >= MOST_NESTED or machine.depth >= DEEPEST - 4:
        machine.note(NoteKind.UNSUPPORTED, "shells nested too deeply; not followed further", place)
        return
    text, path = found.text, found.path
    if found.reads_input:
        text = heredocs.standard_input(machine, state, document, redirects)
        if text is None:
            return
    shell = _shell(machine, state, found, fields)
    with machine.inside(command):
        if text is not None:
            _run_text(machine, shell, text, found, place)
        elif path is not None:
            _run_file(machine, shell, state, path, found)


def _find(fields: Sequence[Field], place: Place) -> _Inner | None:
    words = [item.known for item in fields]
    wrappers: list[str] = []
    at = 0
    first = (words[0] or "").rpartition("/")[2]
    if first == "sbatch":
        return _sbatch(fields)
    if first in ("ssh",):
        return _ssh(fields, place)
    if first in _FANS:
        return _fan(fields, first, place)
    if first == "su" or (first in _TERMINALS and not any(word in SHELLS for word in words)):
        return _typed(fields, first)
    if first not in WRAPPERS and first not in SHELLS:
        if words[0] and _SCRIPT.match(words[0]):
            return _Inner(None, fields[0], tuple(fields[1:]), (), is_shell=False)
        return None
    while at < len(words):
        word = words[at]
        name = (word or "").rpartition("/")[2]
        if name in SHELLS:
            return _behind_shell(fields, at, tuple(wrappers))
        if name in WRAPPERS:
            wrappers.append(name)
            if name == "ssh":
                inside = _ssh(fields[at:], place)
                return None if inside is None else replace(inside, wrappers=tuple(wrappers))
        elif word is not None and not word.startswith("-"):
            if _PROGRAMS.match(name) or name.endswith(".py"):
                return None
            before = words[at - 1] or ""
            if _SCRIPT.match(word) and not (before.startswith("--") and "=" not in before and before != "--"):
                return _Inner(None, fields[at], tuple(fields[at + 1 :]), tuple(wrappers), is_shell=False)
        at += 1
    return None


def _behind_shell(fields: Sequence[Field], at: int, wrappers: tuple[str, ...]) -> _Inner | None:
    index = at + 1
    while index < len(fields):
        word = fields[index].known
        if word is None:
            if fields[index].many:
                return None
            return _Inner(None, None, (), wrappers)
        if word in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file"):
            index += 2
            continue
        if word == "--":
            index += 1
            break
        if re.fullmatch(r"-[a-zA-Z]*c[a-zA-Z]*", word):
            index += 1
            while index < len(fields) and re.fullmatch(r"-[a-zA-Z]+", fields[index].known or ""):
                index += 1
            if index < len(fields):
                return _Inner(fields[index].text, None, tuple(fields[index + 2 :]), wrappers)
            return None
        if word in ("-s", "-"):
            return _Inner(None, None, tuple(fields[index + 1 :]), wrappers, reads_input=True)
        if not word.startswith(("-", "+")):
            return _Inner(None, fields[index], tuple(fields[index + 1 :]), wrappers)
        index += 1
    if index < len(fields):
        return _Inner(None, fields[index], tuple(fields[index + 1 :]), wrappers)
    return _Inner(None, None, (), wrappers, reads_input=True)


def _ssh(fields: Sequence[Field], place: Place) -> _Inner | None:
    index = 1
    while index < len(fields):
        word = fields[index].known
        if word is None or not word.startswith("-"):
            break
        index += 2 if len(word) == 2 and word[1] in _SSH_VALUES else 1
    rest = fields[index + 1 :]
    if not rest:
        return _Inner(None, None, (), ("ssh",), reads_input=True)
    pieces = list(rest[0].text)
    for item in rest[1:]:
        pieces += [*literal(" ", place, " "), *item.text]
    return _Inner(tuple(pieces), None, (), ("ssh",))


def _fan(fields: Sequence[Field], name: str, place: Place) -> _Inner | None:
    """`pdsh -w node[0-3] "cd /w; torchrun ..."`: what stands behind the options is one text for a shell there."""
    valued = _FANS[name].split()
    index = 1
    while index < len(fields):
        word = fields[index].known
        if word is None or not word.startswith("-"):
            break
        index += 2 if word in valued else 1
    if index >= len(fields):
        return None
    pieces = list(fields[index].text)
    for item in fields[index + 1 :]:
        pieces += [*literal(" ", place, " "), *item.text]
    return _Inner(tuple(pieces), None, (), (name,))


def _typed(fields: Sequence[Field], name: str) -> _Inner | None:
    """`su -c "..." user`; `tmux new -d "..."` and `tmux send-keys "..." Enter`, by the word that is a whole line."""
    for before, item in itertools.pairwise(fields):
        if name == "su" and before.known in ("-c", "--command"):
            return _Inner(item.text, None, (), ())
        if name in _TERMINALS and item.known is not None and " " in item.known.strip():
            return _Inner(item.text, None, (), (name,))
    return None


def _sbatch(fields: Sequence[Field]) -> _Inner | None:
    """`sbatch <<EOF` is a job of its own; `sbatch job.sh` names another file."""
    for index, item in enumerate(fields[1:], start=1):
        word = item.known
        if word is not None and word.startswith("--wrap"):
            if "=" in word:
                return _Inner(after(item.text, len("--wrap=")), None, (), ("sbatch",))
            if index + 1 < len(fields):
                return _Inner(fields[index + 1].text, None, (), ("sbatch",))
    for item in reversed(fields[1:]):
        if item.known and _SCRIPT.match(item.known):
            return _Inner(None, item, (), ("sbatch",))
    return _Inner(None, None, (), ("sbatch",), reads_input=True)


def _shell(machine: Machine, state: State, found: _Inner, fields: Sequence[Field]) -> State:
    """The shell as it starts: only what was exported, unless the wrapper forgets even that."""
    variables: dict[str, Slot] = {}
    if not any(wrapper in _FORGETFUL for wrapper in found.wrappers):
        variables = {name: slot for name, slot in state.variables.items() if slot.exported}
    if "srun" in found.wrappers:
        variables = _exported_by_srun(variables, fields)
    batch = "sbatch" in found.wrappers or (state.batch and not any(w in _ELSEWHERE for w in found.wrappers))
    return State(
        variables,
        dict(state.functions),
        Positional(found.arguments, "the inner script"),
        state.directory,
        prelude=state.prelude,
        batch=batch,
    )


def _exported_by_srun(variables: dict[str, Slot], fields: Sequence[Field]) -> dict[str, Slot]:
    """`srun --export=NONE` or `--export=ALL,A=b`."""
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


def _run_text(machine: Machine, shell: State, text: Text, found: _Inner, place: Place) -> None:
    inside = Document(text, place)
    if "sbatch" in found.wrappers:
        known_before = {(item.option, item.span) for item in machine.directives}
        machine.directives += [d for d in slurm.directives(inside) if (d.option, d.span) not in known_before]
    control.run(machine, shell, inside, inside.root)


def _run_file(machine: Machine, shell: State, state: State, path: Field, found: _Inner) -> None:
    word = path.known
    if word is None:
        return
    target = files.locate(machine, state, word)
    if target is None:
        if found.is_shell:
            machine.note(NoteKind.OUTSIDE, f"{word} lies outside the root; it was not read", path.place)
        return
    content = files.read(machine, state, word)
    if content is None:
        if found.is_shell or word.endswith((".sh", ".bash")):
            machine.refer(target, "script", path.place)
            machine.note(NoteKind.MISSING, f"{word} is not in the tree; it was not read", path.place)
        return
    machine.refer(target, "script", path.place)
    if "sbatch" in found.wrappers:
        # A job of its own, with a header of its own: read when that file is.
        return
    if target in machine.reading:
        machine.note(NoteKind.UNSUPPORTED, f"{word} runs itself; not followed further", path.place)
        return
    if machine.trace is not None:
        machine.trace.enters(machine.outer[-1] if machine.outer else None, path, target)
    machine.reading.append(target)
    try:
        inside = files.document(machine, content)
        control.run(machine, shell, inside, inside.root)
    finally:
        machine.reading.pop()
