"""Finds the shell that a command starts (`bash -c '...'`, `bash run.sh`, `srun ... bash <<EOF`, `ssh host '...'`), and
the variables that it starts with: those that its wrappers pass on, add or clear.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from preflight.sources.base import SSH_VALUES, SUBMITTERS, Command, SourceFile, Variable
from preflight.sources.shell.abstract_machine import Machine
from preflight.sources.shell.lookup import MPI_ALTERNATIVES, change_directory
from preflight.sources.shell.shell_document import FileText, Lit, Place, Text
from preflight.sources.shell.state import Kind, Positional, Slot, State, place_of, slots_from_environment
from preflight.sources.shell.words import Field, join_words, literal, skip_characters, written_path

SHELLS = frozenset(("bash", "sh", "dash", "zsh", "ksh", "rbash"))
#: Programs that start a command on another host or in a container, without the caller's environment.
CLEARS_ENVIRONMENT = frozenset(
    [
        *("ssh", "pdsh", "clush", "kubectl", "docker", "podman", "nvidia-docker", "dsh", "parallel-ssh", "pssh"),
        *("pbsdsh", "xpk", "gcloud"),
    ]
)
#: All programs that may start a command on different nodes from the batch script's.
RUNS_ELSEWHERE = CLEARS_ENVIRONMENT | frozenset(
    [
        *("srun", "mpirun", "mpiexec", *MPI_ALTERNATIVES, "orterun", "prterun", "jsrun", "aprun", "flux", "parallel"),
        *("ray", "salloc", "ibrun", "mpirun_rsh"),
    ]
)
#: Programs that start the command that follows their own options.
WRAPPERS = RUNS_ELSEWHERE | frozenset(
    (
        *("env", "timeout", "nohup", "exec", "time", "nice", "ionice", "numactl", "taskset", "sudo", "setsid"),
        *("stdbuf", "unbuffer", "command", "singularity", "apptainer", "enroot", "shifter", "xargs", "chroot"),
        *("unshare", "nsenter", "catchsegv", "strace", "perf", "nsys", "ncu", "gdb", "conda", "mamba", "micromamba"),
        *("tmux", "screen", "prun", "brun", "lsrun", "bsub", "horovodrun", "mpiexec.hydra", "hydra"),
    )
)
_PROGRAMS = re.compile(
    r"(python[\d.]*|torchrun|deepspeed|accelerate|paddle\w*|fleetrun|horovodrun|colossalai|composer|pytest|julia|perl)$"
)
_SCRIPT = re.compile(r"[^=]*\.(sh|bash|slurm|sbatch|slrm|ksh|run|pbs|qsub|job|sub)$")
#: Programs that run a command on many hosts, each with its options that take a value.
_MULTI_HOST = {
    "pdsh": "-w -x -f -R -l -t -u -g -M -N",
    "clush": "-w -g -f -x -X -l -t -u -o -m -O --hostfile -R",
    "parallel-ssh": "-h --hosts -H --host -l --user -p --par -o --outdir -e --errdir -t --timeout -O --option -x -X",
    "pssh": "-h --hosts -H --host -l --user -p --par -o --outdir -e --errdir -t --timeout -O --option -x -X",
    "dsh": "-m --machine -g --group -f --file -F --forklimit -r --remoteshell -o",
}
#: Programs that take a whole command line after `-c`.
_COMMAND_OPTION = frozenset(("su", "sg", "script", "runuser"))
_TERMINALS = frozenset(("tmux", "screen"))


@dataclass(frozen=True, slots=True)
class InnerShell:
    """A shell found among the words of a command.

    Args:
        text: its code; None when it reads a file or standard input.
        path: its script file; None when it has code.
        arguments: its positional parameters.
        wrappers: the programs that start it, outermost first.
        reads_input: whether it reads its code from standard input; with a `path`, only if there is any input.
        is_shell: whether a shell is named; otherwise a script is run by its own path.
    """

    text: Text | None
    path: Field | None
    arguments: tuple[Field, ...]
    wrappers: tuple[str, ...]
    reads_input: bool = False
    is_shell: bool = True


def find_inner_shell(fields: Sequence[Field], place: Place) -> InnerShell | None:
    """Return the shell that the words start, or None."""
    words = [item.known for item in fields]
    wrappers: list[str] = []
    at = 0
    first = (words[0] or "").rpartition("/")[2]
    if first in ("sbatch", "qsub"):
        return _sbatch(fields, first)
    if first == "bsub" and len(fields) > 1 and " " in (fields[-1].known or fields[-1].text[0].spelling).strip():
        # `bsub -n 8 "bash node.sh 0"`: one word is a whole command line.
        return InnerShell(fields[-1].text, None, (), ("bsub",))
    if first in ("ssh",):
        return _ssh(fields, place)
    submitter = _submitter(words, first)
    if submitter:
        return _command_option(fields, submitter)
    if first in _MULTI_HOST:
        return _multi_host(fields, first, place)
    if first in _COMMAND_OPTION or (first in _TERMINALS and not any(word in SHELLS for word in words)):
        return _parse_typed(fields, first)
    if first not in WRAPPERS and first not in SHELLS:
        after = _shell_after_dashes(words)
        if after is not None:
            # Programs that submit a command take it after `--`: `gantry run --gpus 8 -- bash -c '...'`.
            return _after_shell(fields, after, (first or "?",))
        script = written_path(fields[0]) if fields else None
        if script and _SCRIPT.match(script):
            return InnerShell(None, fields[0], tuple(fields[1:]), (), is_shell=False)
        return None
    while at < len(words):
        word = words[at]
        name = (word or "").rpartition("/")[2]
        if name in SHELLS:
            return _after_shell(fields, at, tuple(wrappers))
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
                return InnerShell(None, fields[at], tuple(fields[at + 1 :]), tuple(wrappers), is_shell=False)
        at += 1
    return None


def _shell_after_dashes(words: Sequence[str | None]) -> int | None:
    """Return the index of a shell directly after `--` that is given code."""
    for at in range(1, len(words) - 3):
        if words[at] == "--" and (words[at + 1] or "").rpartition("/")[2] in SHELLS:
            options = itertools.takewhile(lambda word: (word or "").startswith("-"), words[at + 2 :])
            return at + 1 if any(re.fullmatch(r"-[a-z]*c", word or "") for word in options) else None
    return None


def _after_shell(fields: Sequence[Field], at: int, wrappers: tuple[str, ...]) -> InnerShell | None:
    """Parse the words after the name of a shell: its options, then its code, file or standard input."""
    index = at + 1
    while index < len(fields):
        word = written_path(fields[index])
        if word is None:
            if fields[index].many:
                return None
            # A file that the script writes may be found by its unknown name.
            return InnerShell(None, fields[index], tuple(fields[index + 1 :]), wrappers)
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
                return InnerShell(fields[index].text, None, tuple(fields[index + 2 :]), wrappers)
            return None
        if word in ("-s", "-"):
            index += 1 + (index + 1 < len(fields) and fields[index + 1].known == "--")
            return InnerShell(None, None, tuple(fields[index:]), wrappers, reads_input=True)
        if not word.startswith(("-", "+")):
            return InnerShell(None, fields[index], tuple(fields[index + 1 :]), wrappers)
        index += 1
    if index < len(fields):
        return InnerShell(None, fields[index], tuple(fields[index + 1 :]), wrappers)
    return InnerShell(None, None, (), wrappers, reads_input=True)


def _ssh(fields: Sequence[Field], place: Place) -> InnerShell | None:
    index = _after_options(fields, lambda word: len(word) == 2 and word[1] in SSH_VALUES)
    rest = fields[index + 1 :]
    if not rest:
        return InnerShell(None, None, (), ("ssh",), reads_input=True)
    return InnerShell(join_words(rest, place), None, (), ("ssh",))


def _after_options(fields: Sequence[Field], takes_value: Callable[[str], bool]) -> int:
    """Return the index of the first word after the options of a program."""
    index = 1
    while index < len(fields) and (word := fields[index].known) is not None and word.startswith("-"):
        index += 2 if takes_value(word) else 1
    return index


def _multi_host(fields: Sequence[Field], name: str, place: Place) -> InnerShell | None:
    """Parse `pdsh -w node[0-3] "cd /w; torchrun ..."`: all words after the options are shell code for each host."""
    rest = fields[_after_options(fields, _MULTI_HOST[name].split().__contains__) :]
    return InnerShell(join_words(rest, place), None, (), (name,)) if rest else None


def _parse_typed(fields: Sequence[Field], name: str) -> InnerShell | None:
    """Parse `su -c "..." user`, `tmux new -d "..."`, `tmux send-keys "..." Enter`: one word is a whole command line."""
    for before, item in itertools.pairwise(fields):
        if name in _COMMAND_OPTION and before.known in ("-c", "--command"):
            return InnerShell(item.text, None, (), ())
        if name in _TERMINALS and item.known is not None and " " in item.known.strip():
            return InnerShell(item.text, None, (), (name,))
    return None


def _submitter(words: Sequence[str | None], first: str) -> str:
    """Return the program that takes a whole command line after `--command` for the hosts of a cloud, or nothing."""
    second = (words[1] or "").rpartition("/")[2] if len(words) > 1 else ""
    if first.removesuffix(".py") == "xpk" or (second == "xpk.py" and first.startswith("python")):
        return "xpk"
    # `gcloud compute tpus tpu-vm ssh NAME --worker=all --command "..."`
    return "gcloud" if first == "gcloud" and "ssh" in words else ""


def _command_option(fields: Sequence[Field], name: str) -> InnerShell | None:
    for number, item in enumerate(fields):
        if item.known == "--command" and number + 1 < len(fields):
            return InnerShell(fields[number + 1].text, None, (), (name,))
        if item.text and isinstance(item.text[0], Lit) and item.text[0].text.startswith("--command="):
            return InnerShell(skip_characters(item.text, len("--command=")), None, (), (name,))
    return None


def _sbatch(fields: Sequence[Field], name: str) -> InnerShell | None:
    """Parse `sbatch --wrap ...`, `sbatch job.sh`, and `sbatch <<EOF`, which is a separate job."""
    for index, item in enumerate(fields[1:], start=1):
        word = item.known
        if word is not None and word.startswith("--wrap"):
            if "=" in word:
                return InnerShell(skip_characters(item.text, len("--wrap=")), None, (), (name,))
            if index + 1 < len(fields):
                return InnerShell(fields[index + 1].text, None, (), (name,))
    for number, item in enumerate(fields[1:], start=1):
        if item.known and _SCRIPT.match(item.known):
            return InnerShell(None, item, tuple(fields[number + 1 :]), (name,))
    last = fields[-1]
    if len(fields) > 1 and not (last.known or "").startswith("-") and (last.known is None or "=" not in last.known):
        # A script whose name has no usual suffix, or is unknown.
        return InnerShell(None, last, (), (name,), reads_input=True, is_shell=False)
    return InnerShell(None, None, (), (name,), reads_input=True)


_ENGINES = frozenset(("docker", "podman", "nvidia-docker"))
#: `srun --export=NAME=value`.
_EXPORTED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")


def inner_state(
    machine: Machine, state: State, inner_shell: InnerShell, fields: Sequence[Field], command: Command, place: Place
) -> State:
    """Return the state the inner shell starts in: exported variables, with those that its wrappers add or clear."""
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
        _directory_in_container(machine, state, inner_shell, fields) or state.directory,
        prelude=state.prelude,
        batch=batch,
        is_elsewhere=state.is_elsewhere,
    )


def _directory_in_container(
    machine: Machine, state: State, inner_shell: InnerShell, fields: Sequence[Field]
) -> str | None:
    """Return the folder of the tree that `docker run -w DIRECTORY` starts in; None without the option or the folder."""
    words = [field.known or "" for field in fields]
    for word, following in itertools.pairwise(words) if _ENGINES.intersection(inner_shell.wrappers) else ():
        option, _, value = word.partition("=")
        if option in ("-w", "--workdir"):
            return change_directory(machine, state, value or following)
    return None


def state_under_env(state: State, fields: Sequence[Field]) -> State:
    """Return the state of the shell inside `env -u X A=b command`."""
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
    """Return the variables that the wrappers of one command pass on: `docker run -e A=b`, `mpirun -x A=b`,
    `--env-file`.
    """
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
    """Return the place of a variable in the file that sets it."""
    file = machine.tree.read(variable.span.path)
    return place_of(variable, FileText(file.path, file.text)) if isinstance(file, SourceFile) else None


def _exported_by_sbatch(variables: dict[str, Slot], fields: Sequence[Field]) -> dict[str, Slot]:
    """Return the variables that `sbatch --export=NONE` or `--export=ALL,A=b` passes on."""
    for item in fields:
        word = item.known or ""
        if word.startswith("--export="):
            names = word.partition("=")[2].split(",")
            kept = dict(variables) if "ALL" in names else {n: s for n, s in variables.items() if n in names}
            kept.update(_assigned_variables(names, item.place))
            return kept
    return variables


def _exported_by_qsub(variables: dict[str, Slot], fields: Sequence[Field]) -> dict[str, Slot]:
    """Return the variables that `qsub -v A=b,C` and `qsub -V` pass on."""
    kept = dict(variables) if any(item.known == "-V" for item in fields) else {}
    for before, item in itertools.pairwise(fields):
        if before.known != "-v":
            continue
        names = (item.known or "").split(",")
        kept.update({name: variables[name] for name in names if name in variables})
        kept.update(_assigned_variables([name.strip() for name in names], item.place))
    return kept


def _assigned_variables(names: Sequence[str], place: Place) -> dict[str, Slot]:
    """Return the variables that the words of the form `NAME=value` set."""
    found = [match for name in names if (match := _EXPORTED.fullmatch(name))]
    return {each[1]: Slot(Kind.TEXT, place, literal(each[2], place), exported=True) for each in found}
