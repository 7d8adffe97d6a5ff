"""What stands in front of a launcher: `srun`, `env`, `timeout 10`, `docker run ... image`, `conda run -n x` ...

Each wrapper is taken off with its own options, so that what is left begins with the program it starts.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from preflight.job import Known, Unresolved
from preflight.sources.base import Command, Variable, Word
from preflight.sources.launchers import mpi, slurm
from preflight.sources.launchers.options import Given, Scanned, Table, head, scan, table, text_of
from preflight.sources.launchers.programs import is_python

#: Commands that name programs without starting them.
_TALK = frozenset(
    "echo printf which type pip pip3 apt apt-get grep egrep rg awk sed cat less tail head"
    " pkill killall pgrep kill ps git wget curl export alias read test [ [[ cd mkdir rm cp mv ls ln touch chmod tee set"
    " unset trap wait sleep module ml source . man help nvidia-smi find rsync scp tar".split()
)
_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_DEEPEST = 12


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


@dataclass(frozen=True, slots=True)
class _Kind:
    """How to read one wrapper: its options, how many plain words follow, and which one is image or host."""

    options: Table
    plain: int = 0
    image: bool = False
    host: bool = False
    subcommands: tuple[str, ...] = ()
    exports: str = ""
    passes_environment: bool = True


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
    return posixpath.basename(text_of(words[0]) or "") if words else ""


def only_talks(name: str) -> bool:
    """Whether this command mentions programs instead of starting them."""
    return name in _TALK


def _one(words: Sequence[Word], command: Command) -> tuple[Wrapper | None, tuple[Word, ...]] | None:
    if not words:
        return None
    name = program_name(words)
    if name in _SIMPLE:
        return None, tuple(words[1:])
    if name == "env":
        return _env(words, command)
    kind = _KINDS.get(name)
    if kind is not None:
        return _wrapper(name, kind, words, command)
    return None


def _wrapper(
    name: str, kind: _Kind, words: Sequence[Word], command: Command
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
    assignments = (
        tuple(_assignment(given, command) for given in scanned.every(kind.exports)) if kind.exports else ()
    )
    wrapper = Wrapper(
        name=_PLAIN_NAMES.get(name, name),
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
    """`-x NAME=value` or `-x NAME` (the value it has here)."""
    if not isinstance(given.value, Known):
        return None
    text = str(given.value.value)
    name, equals, value = text.partition("=")
    if not equals:
        return command.variables.get(name) or command.environment.get(name)
    return Variable(name, Known(value), given.span, text)


def _env(words: Sequence[Word], command: Command) -> tuple[Wrapper | None, tuple[Word, ...]]:
    scanned = scan(words[1:], _ENV)
    rest = list(scanned.rest)
    variables: list[Variable] = []
    while rest:
        match = _ASSIGNMENT.match(head(rest[0]))
        if match is None:
            break
        word = rest.pop(0)
        text = text_of(word)
        value = (
            Known(text[match.end() :])
            if text is not None
            else Unresolved(getattr(word.value, "why", "unknown"))
        )
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


def find_launcher(words: Sequence[Word], is_launcher: Callable[[str], bool]) -> int | None:
    """Where a launcher stands behind a prefix nobody knows (`$PREFIX torchrun ...`, `./wrap.sh torchrun ...`)."""
    if not words or only_talks(program_name(words)):
        return None
    for index in range(1, len(words)):
        name = posixpath.basename(text_of(words[index]) or "")
        if is_launcher(name) and index + 1 < len(words):
            return index
        if (text_of(words[index]) or "").endswith(".py") and index + 1 < len(words):
            return None
        if index + 1 < len(words) and is_python(words[index:]):
            follows = text_of(words[index + 1]) or ""
            if follows in ("-m", "-u") or follows.endswith(".py"):
                return index
    return None


_NONE = table({}, {})
_ENV = table(
    {"unset": "-u --unset", "chdir": "-C --chdir", "split": "-S --split-string"},
    {"clean": "-i --ignore-environment -", "flag": "-0 --null -v --debug"},
)
_CONTAINER = table(
    {
        "bind": "-B --bind",
        "workdir": "--pwd -W --workdir --cwd",
        "export": "--env",
        "other": "--env-file -H --home --scratch -S --overlay -o --network --hostname --app --apply-cgroups --fakeroot-id"
        " --security --dns --add-caps --drop-caps --mount --fusemount --docker-username --config --pem-path",
    },
    {
        "cleanenv": "-e --cleanenv",
        "flag": "--nv --rocm --nvccli --writable -w --writable-tmpfs --contain -c --containall -C --fakeroot -f --no-home"
        " --ipc -i --pid -p --net -n --uts --userns -u --keep-privs --no-privs --compat --no-init --disable-cache"
        " --no-eval --unsquash --vm -d --debug -q --quiet -s --silent -v --verbose --no-umask --sharens --no-mount",
    },
    abbreviations=False,
)
_DOCKER = table(
    {
        "export": "-e --env",
        "workdir": "-w --workdir",
        "other": "-v --volume --mount --gpus --shm-size --ulimit --name --network --net --ipc --device --user -u -h"
        " --hostname --entrypoint --env-file -m --memory --cpus --cpuset-cpus -p --publish --runtime --cap-add"
        " --cap-drop --security-opt --restart --pid --uts --platform --pull --add-host --dns -l --label --log-driver"
        " --log-opt --tmpfs --group-add --userns --memory-swap --stop-timeout --cgroupns --cidfile --hooks-dir",
    },
    {
        "flag": "--rm -i -t -d --interactive --tty --detach --privileged --init -it -ti --read-only -P --oom-kill-disable"
    },
    abbreviations=False,
)
_SSH = table(
    {
        "other": "-p -i -o -l -F -J -L -R -D -b -c -m -e -E -I -O -Q -S -w -W -B",
    },
    {"flag": "-t -T -n -N -f -q -v -x -X -Y -A -a -C -4 -6 -g -k -K -M -s -V -y -G"},
    abbreviations=False,
)
_KINDS: dict[str, _Kind] = {
    "srun": _Kind(slurm.SRUN),
    "mpirun": _Kind(mpi.MPI, exports="export"),
    "mpiexec": _Kind(mpi.MPI, exports="export"),
    "mpiexec.hydra": _Kind(mpi.MPI, exports="export"),
    "mpirun.openmpi": _Kind(mpi.MPI, exports="export"),
    "orterun": _Kind(mpi.MPI, exports="export"),
    "prterun": _Kind(mpi.MPI, exports="export"),
    "horovodrun": _Kind(mpi.HOROVOD),
    "ssh": _Kind(_SSH, plain=1, host=True, passes_environment=False),
    "apptainer": _Kind(_CONTAINER, plain=1, image=True, subcommands=("exec", "run"), exports="export"),
    "singularity": _Kind(_CONTAINER, plain=1, image=True, subcommands=("exec", "run"), exports="export"),
    "docker": _Kind(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "podman": _Kind(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "nvidia-docker": _Kind(
        _DOCKER, plain=1, image=True, subcommands=("run", "exec"), exports="export", passes_environment=False
    ),
    "shifter": _Kind(
        table({"image": "--image -i", "other": "--volume -V --module -m --workdir -w"}, {}), image=False
    ),
    "timeout": _Kind(
        table(
            {"other": "-s --signal -k --kill-after"}, {"flag": "--foreground --preserve-status -v --verbose"}
        ),
        plain=1,
    ),
    "nice": _Kind(table({"other": "-n --adjustment"}, {})),
    "ionice": _Kind(table({"other": "-c --class -n --classdata"}, {"flag": "-t"})),
    "numactl": _Kind(
        table(
            {"other": "-i --interleave -N --cpunodebind -C --physcpubind -m --membind -p --preferred"},
            {"flag": "-l --localalloc -a --all --show -s --hardware -H --balancing -b"},
        )
    ),
    "taskset": _Kind(table({}, {"flag": "-c --cpu-list -a --all-tasks"}), plain=1),
    "stdbuf": _Kind(table({"other": "-i --input -o --output -e --error"}, {})),
    "time": _Kind(
        table({"other": "-f --format -o --output"}, {"flag": "-p -v -a --verbose --portability --append"})
    ),
    "sudo": _Kind(
        table(
            {"other": "-u --user -g --group -h --host -p --prompt -C -D --chdir"},
            {"flag": "-E --preserve-env -H -n -S -b -i -s"},
        )
    ),
    "exec": _Kind(table({"other": "-a"}, {"flag": "-c -l"})),
    "nsys": _Kind(
        table(
            {
                "other": "-o --output -t --trace -s --sample -c --capture-range -d --duration -y --delay -x --export"
                " --capture-range-end --stats --force-overwrite -f --cuda-memory-usage --gpu-metrics-device"
                " --gpu-metrics-devices --cudabacktrace --python-sampling --pytorch --cuda-graph-trace --kill -n"
                " --inherit-environment --stop-on-exit -w --show-output --backtrace --cpuctxsw --nvtx-domain-include"
                " --session-new -e --env-var --trace-fork-before-exec --wait --nic-metrics --stop-on-range-end"
            },
            {},
        ),
        subcommands=("profile", "launch"),
    ),
    "ncu": _Kind(
        table(
            {"other": "-o --export --set --section -k --kernel-name -c --launch-count --target-processes"}, {}
        )
    ),
    "conda": _Kind(
        table(
            {"name": "-n --name", "prefix": "-p --prefix", "cwd": "--cwd"},
            {"flag": "--no-capture-output --live-stream -v"},
        ),
        subcommands=("run",),
    ),
    "uv": _Kind(
        table(
            {
                "other": "--with --python -p --extra --group --project --directory --env-file --with-requirements"
            },
            {
                "flag": "--no-sync --frozen --isolated --active --no-project --locked --offline -q --quiet -v --all-extras"
            },
        ),
        subcommands=("run",),
    ),
    "poetry": _Kind(_NONE, subcommands=("run",)),
    "pipenv": _Kind(_NONE, subcommands=("run",)),
    "pixi": _Kind(table({"other": "-e --environment --manifest-path"}, {}), subcommands=("run",)),
    "pdsh": _Kind(
        table({"other": "-w -x -f -R -l -t -u -g"}, {"flag": "-S -b -d"}), passes_environment=False
    ),
    "clush": _Kind(
        table({"other": "-w -g -f -x -X -l -t -u -o"}, {"flag": "-a -b -B -S -L -q -v"}),
        passes_environment=False,
    ),
    "flock": _Kind(table({"other": "-w --timeout -E"}, {"flag": "-n -x -s -u -o"}), plain=1),
    "ibrun": _Kind(table({"other": "-n -o"}, {})),
}
_KINDS.update(mamba=_KINDS["conda"], micromamba=_KINDS["conda"])
_PLAIN_NAMES = {
    "mpiexec": "mpirun",
    "mpiexec.hydra": "mpirun",
    "mpirun.openmpi": "mpirun",
    "orterun": "mpirun",
    "prterun": "mpirun",
    "singularity": "apptainer",
    "nvidia-docker": "docker",
}
_SIMPLE = frozenset("nohup command builtin setsid unbuffer catchsegv eatmydata !".split())
