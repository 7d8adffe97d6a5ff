"""The context in which the ranks of a launch run: interpreter, directory, container, packages, environment.

Options: Docker 27 `docker run` reference; Podman 5 manual; Apptainer 1.3 user guide. Claims about a container that runs
a launch line have the scope of that launch; any other container has its own scope.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from preflight._util import toml
from preflight._util.budget import note_skipped
from preflight._util.redaction import HIDDEN
from preflight._util.secret_names import is_secret
from preflight.model.job import (
    WHOLE_JOB,
    Claim,
    Known,
    Plain,
    Reference,
    Scope,
    Span,
    Strength,
    Unresolved,
    Value,
    is_whole_number,
    lift,
)
from preflight.model.job.value import Symbol
from preflight.sources.base import Command, LaunchLine, Reading, SourceFile, Tree, Variable, Word
from preflight.sources.configs.packages import LOCKS, claims, conda_package_of, cuda_of, package_of
from preflight.sources.configs.packages import ROLE as LOCK_ROLE
from preflight.sources.launchers import mpi, slurm
from preflight.sources.launchers.claim_builder import (
    ClaimBuilder,
    state_choices,
    state_launcher,
    state_unknown,
    variable_setting,
)
from preflight.sources.launchers.option_parser import (
    GivenOption,
    ScannedLine,
    file_named,
    file_references,
    is_python,
    known_prefix,
    known_text,
    paths_of,
    relative,
    scan,
    text_of,
)
from preflight.sources.launchers.wrappers import WRAPPER_SYNTAX, Wrapper, program_name, strip_wrappers
from preflight.sources.tables import load_table
from preflight.sources.value_readers import count_of

#: Engines that share the host's network, memory and devices, but the driver's libraries only on request.
_HPC_ENGINES = frozenset(("apptainer", "singularity"))
_NV_VARIABLES = ("APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_NVCCLI", "APPTAINER_ROCM")
ENGINES = frozenset(("docker", "podman", "nvidia-docker")) | _HPC_ENGINES
#: Devices that provide accelerators without `--gpus`: NVIDIA device files or CDI, ROCm, Habana.
_GPU_DEVICE = re.compile(r"/dev/nvidia|nvidia\.com/gpu|amd\.com/gpu|/dev/kfd|/dev/dri|/dev/accel|/dev/davinci")
_SHM_MOUNT = re.compile(r"(?:^|[:=,])/dev/shm(?=$|[:,/])|^/dev:/dev")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1 / 1024**2, "b": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_UNKNOWN_OPTIONS = Unresolved(Symbol.CONTAINER_OPTIONS.value)
_UNKNOWN_DEVICES = Unresolved("devices that are known only at run time")
#: A program and the blank after it.
_PROGRAM = re.compile(
    r"\s*(?:(?:\S*/)?(?:python[\d.]*|torchrun|deepspeed|accelerate|mpirun|mpiexec|srun|bash|sh|nsys|fleetrun)"
    r"|\S+\.(?:py|sh))\s+"
)
#: Options that show by their form that they are an engine's; many programs have a `-c` or `-m` of their own.
_ENGINE_OPTION = re.compile(r"--[a-z]|-v ?\S+:|-e ?\w+=|-(?:it|ti|d|i|t)$")
_MAX_WORDS = 12
_MAX_COMMAND_LENGTH = 1000


def container_starts(command: Command) -> Iterator[Wrapper]:
    """Yield the containers that a command starts, outermost first, after those of the commands around it."""
    for wrapper in strip_wrappers(command).wrappers:
        if wrapper.name in ENGINES and wrapper.image is not None and _starts_container(wrapper):
            yield wrapper


def _starts_container(wrapper: Wrapper) -> bool:
    """Return whether the wrapper is `run`, not `exec` in a running container: only a new container gets resources."""
    words = wrapper.command.words
    at = next((index for index, word in enumerate(words) if word.span == wrapper.word.span), None)
    if at is None:
        return False
    allowed = ("run", "exec") if wrapper.name in _HPC_ENGINES else ("run", "create")
    return any(text_of(word) in allowed for word in words[at + 1 : at + 6])


def state_containers(commands: Sequence[Command], launches: Mapping[Span, Sequence[Scope]]) -> tuple[Claim, ...]:
    """Return claims about the resources of every container.

    Args:
        commands: the commands of a script.
        launches: the scopes of the launches inside a container, by the location of the engine's word.
    """
    claims: list[Claim] = []
    seen: set[Span] = set()
    for command in commands:
        if program_name(command.words) in _ONLY_MENTIONS or not _names_engine(command):
            continue
        for wrapper in container_starts(command):
            if wrapper.word.span in seen:
                continue
            seen.add(wrapper.word.span)
            own = Scope(launch=f"{wrapper.word.span.path}:{wrapper.word.span.line}")
            for scope in launches.get(wrapper.word.span, (own,)):
                builder = ClaimBuilder("container", scope, command.condition)
                _state_container_run(builder, wrapper)
                claims.extend(builder.claims)
    return tuple(claims)


def _names_engine(command: Command) -> bool:
    names = [(text_of(word) or "").rpartition("/")[2] for word in command.words[:60]]
    return not ENGINES.isdisjoint(names)


_ONLY_MENTIONS = frozenset(("echo", "printf", "which", "type"))


def _state_container_run(builder: ClaimBuilder, wrapper: Wrapper) -> None:
    image = wrapper.image
    assert image is not None
    given = wrapper.scanned
    subcommand = "exec" if wrapper.name in _HPC_ENGINES else "run"
    spelling = f"{wrapper.word.spelling} {subcommand} ... {image.spelling}"
    builder.add("container_run", image.value, wrapper.word.span, spelling)
    words = _container_words(wrapper)
    if words:
        text = " ".join(text_of(each) or known_prefix(each) or "?" for each in words)[:_MAX_COMMAND_LENGTH]
        builder.add("container_command", Known(text), words[0], " ".join(each.spelling for each in words))
    if given.last("entrypoint") is None:
        _state_option_behind_image(builder, wrapper, words)
    if wrapper.name in _HPC_ENGINES:
        _state_hpc_container(builder, wrapper)
        return
    _state_gpus(builder, wrapper)
    _state_shm(builder, given)
    builder.add_setting("container_network", given.last("network"))
    for ulimit in given.every("ulimit"):
        if known_text(ulimit).startswith("memlock"):
            builder.add_setting("container_memlock", ulimit)
    if given.last("privileged") is not None:
        builder.add_setting("pod_capability", given.last("privileged"), lambda _: Known("privileged"))
    for added in given.every("cap_add"):
        builder.add_setting("pod_capability", added)
    for device in (*given.every("device"), *given.every("volume")):
        if "/dev/infiniband" in known_text(device):
            builder.add_setting("host_path", device)
    if given.incomplete:
        builder.add("host_path", _UNKNOWN_OPTIONS, wrapper.word.span, spelling)
        # `docker run $OPTIONS image`: the variable may hold any option that is missing on the line.
        if not any(claim.quantity == "container_gpus" for claim in builder.claims):
            builder.add("container_gpus", _UNKNOWN_OPTIONS, wrapper.word.span, spelling)
        builder.add("shm_mib", _UNKNOWN_OPTIONS, wrapper.word.span, spelling)
        builder.add("container_network", _UNKNOWN_OPTIONS, wrapper.word.span, spelling)


def _state_option_behind_image(builder: ClaimBuilder, wrapper: Wrapper, words: Sequence[Word]) -> None:
    """Add a claim about an option of the engine between the image and the program, which the engine takes for the
    program itself.
    """
    behind = scan(words, WRAPPER_SYNTAX[wrapper.name].options)
    if not behind.given or not _ENGINE_OPTION.match(behind.given[0].spelling):
        return
    first = behind.given[0]
    program = " ".join((*(text_of(each) or known_prefix(each) for each in behind.rest[:1]), ""))
    why = Unresolved("the entrypoint of the image may take it as its own option")
    is_program = not behind.unknown and _PROGRAM.match(program) is not None
    builder.add("option_behind_image", Known(first.spelling) if is_program else why, first)


def _state_hpc_container(builder: ClaimBuilder, wrapper: Wrapper) -> None:
    given, word = wrapper.scanned, wrapper.word
    builder.add_setting("container_gpus", given.last("nv"), lambda _: Known("nv"))
    for name in _NV_VARIABLES:
        variable = wrapper.command.environment.get(name)
        if variable is not None:
            builder.add("container_gpus", variable.value, variable)
    if given.incomplete:
        builder.add("container_gpus", _UNKNOWN_OPTIONS, word)
    builder.add("container_network", Known("host"), word)
    builder.add("shm_mib", Unresolved("the /dev/shm of the host"), word)


def _state_gpus(builder: ClaimBuilder, wrapper: Wrapper) -> None:
    given = wrapper.scanned
    option = given.last("gpus")
    if option is not None:
        builder.add_setting("container_gpus", option)
        count = lift(_gpu_count, option.value)
        if not isinstance(count, Unresolved):
            builder.add_setting("gpus_per_node", option, lambda _: count, strength=Strength.SCHEDULER)
        return
    runtime = given.last("runtime")
    devices = [option for option in given.every("device") if _GPU_DEVICE.search(known_text(option))]
    mounts = [option for option in given.every("volume") if _GPU_DEVICE.search(known_text(option))]
    if runtime is not None and known_text(runtime) != "runc":
        builder.add_setting("container_gpus", runtime)
    elif devices or mounts:
        builder.add_setting("container_gpus", (devices or mounts)[0])
    elif given.last("privileged") is not None:
        builder.add_setting("container_gpus", given.last("privileged"), lambda _: Known("privileged"))
    elif wrapper.word.spelling.strip("\"'").endswith("nvidia-docker"):
        builder.add("container_gpus", Known("nvidia-docker"), wrapper.word)
    elif any(isinstance(option.value, Unresolved) for option in (*given.every("device"), *given.every("hooks"))):
        builder.add("container_gpus", _UNKNOWN_DEVICES, wrapper.word)


def _gpu_count(item: Plain) -> Plain:
    """Return the number of GPUs in `4`, `"device=0,1"` or `device=2`; ValueError for `all`."""
    text = str(item).strip("\"'")
    if is_whole_number(text):
        return int(text)
    if text.startswith("device="):
        return len([part for part in text.removeprefix("device=").strip("\"'").split(",") if part])
    raise ValueError(f"{text}: as many as the host has")


def _state_shm(builder: ClaimBuilder, given: ScannedLine) -> None:
    size, ipc = given.last("shm_size"), given.last("ipc")
    if size is not None:
        builder.add_setting("shm_mib", size, lambda value: lift(mebibytes, value))
    if ipc is not None and known_text(ipc) not in ("private", "none", "shareable"):
        builder.add_setting("shm_mib", ipc, lambda _: Unresolved("the /dev/shm of the host, or of another container"))
    for mount in (*given.every("volume"), *given.every("tmpfs")):
        if _SHM_MOUNT.search(known_text(mount)) or (isinstance(mount.value, Unresolved) and "shm" in mount.spelling):
            builder.add_setting("shm_mib", mount, lambda _: Unresolved("a volume mounted there"))


def mebibytes(item: Plain) -> Plain:
    """Convert `8g`, `512m`, `1gb` or a number of bytes to MiB; ValueError for anything else."""
    match = _SIZE.fullmatch(str(item).strip())
    if match is None:
        raise ValueError(f"{item!r} is not a size")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _container_words(wrapper: Wrapper) -> tuple[Word, ...]:
    """Return the words after the image."""
    words = wrapper.command.words
    for index, word in enumerate(words):
        if wrapper.image is not None and word.span == wrapper.image.span:
            return tuple(words[index + 1 :][:_MAX_WORDS])
    return ()


#: Wrappers that start the next word as a program, without a shell; those of containers may start it as an argument.
_EXECUTORS = frozenset(
    ("srun", "mpirun", "jsrun", "docker", "podman", "apptainer", "enroot", "shifter", "env", "timeout", "numactl")
)
#: Clients that start what comes after `--`.
_REMOTE_CLIENTS = frozenset(("ray", "kubectl", "oc"))
_COMMAND_IN_A_WORD = re.compile(rf"{_PROGRAM.pattern}\S")


def state_quoted_commands(commands: Sequence[Command]) -> tuple[Claim, ...]:
    """Return a claim about each word that holds a whole command line where a program is expected."""
    claims: dict[Span, Claim] = {}
    for command in commands:
        stripped = strip_wrappers(command)
        own = [wrapper for wrapper in stripped.wrappers if wrapper.command is command]
        words = stripped.words
        if program_name(words) in _REMOTE_CLIENTS:
            at = next((index for index, word in enumerate(words) if text_of(word) == "--"), len(words))
            words = words[at + 1 :]
        elif not own or own[-1].name not in _EXECUTORS:
            continue
        text = (text_of(words[0]) or known_prefix(words[0])) if words else ""
        if not _COMMAND_IN_A_WORD.match(text) or not _is_quoted(words[0]):
            continue
        source = own[-1].name if words is stripped.words else program_name(stripped.words)
        if words is stripped.words and own[-1].image is not None:
            if own[-1].scanned.last("entrypoint") is not None:
                continue
            source = "container" if _starts_container(own[-1]) else source
        builder = ClaimBuilder(source, condition=command.condition)
        value = Known(words[0].spelling)
        claims[words[0].span] = builder.add("quoted_command", value, words[0].span, words[0].spelling)
    return tuple(claims.values())


def _is_quoted(word: Word) -> bool:
    """Return whether a word is in quotes, so that the shell does not split the value of `$CMD`."""
    span = word.span
    return not word.spelling.startswith("$") or '"' in span.snippet[max(span.column - 2, 0) : span.column]


#: Options of `pip install` and `conda install` that take the next word, from their own help (pip 25.0, conda 24.11).
_WITH_VALUE = toml.words(__file__, "words.toml", "installer-options")
#: The beginnings of options that take the address of wheels.
_ADDRESSES = ("--index", "--extra-index", "--find-l", "--default-index")
_MAX_CLAIMS = 200
#: The name before an unknown version: `torch==$VERSION`.
_PACKAGE_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]*(?=(?:\[[^\]]*\])?[=<>~!]=)")
_INSTALL = Known("install")
#: Options, addresses and versions that ask for a build of the day.
_NIGHTLY = re.compile(
    r"--pre|--nightly|https?://\S*(?:/nightly/|develop\.html|/develop/)\S*|paddlepaddle(?:-gpu)?==0\.0\.0\S*"
)


def _names_releases(words: Sequence[Word]) -> bool:
    """Return whether a command names the release of all that it installs: `--pre` then changes nothing."""
    named = [text for word in words if (text := text_of(word)) is not None and package_of(text) is not None]
    frameworks = [text for text in named if not text.startswith(("-", "http"))]
    return bool(frameworks) and all("==" in text for text in frameworks)


def read_installs(commands: Iterable[Command], tree: Tree) -> Reading:
    """Return one claim per install command and one per framework it names, and refer to requirement files."""
    found: list[Claim] = []
    references: list[Reference] = []
    for command in commands:
        if len(found) >= _MAX_CLAIMS:
            note_skipped(f"only the first {_MAX_CLAIMS} installed packages were read")
            break
        if not any(word.value == _INSTALL for word in command.words[:12]):
            continue
        stripped = strip_wrappers(command)
        rest = _install_words(stripped.words)
        if rest is None:
            continue
        conda, words = rest
        starters = [w.name for w in stripped.wrappers if w.name in ("srun", "mpirun", "horovodrun", "pdsh", "clush")]
        source = starters[0] if starters else "pip"
        texts = [text_of(word) for word in words]
        if words:
            shown = " ".join(word.spelling for word in stripped.words)
            line = tuple(text or "" for text in texts)
            builder = ClaimBuilder(source, condition=command.condition)
            found.append(builder.add("installing_line", Known(line), command.span, shown))
        _read_packages(words, command, source, tree, found, references, conda=conda)
    return Reading(claims=tuple(found), references=tuple(references))


def _install_words(words: Sequence[Word]) -> tuple[bool, Sequence[Word]] | None:
    """Return whether conda installs, and the words after `install`; None for any other command."""
    if not words:
        return None
    name = program_name(words)
    first_words = [text_of(word) for word in words[:5]]
    start = 1
    if is_python(words) and first_words[1:3] == ["-m", "pip"]:
        name, start = "pip", 3
    elif name == "uv" and first_words[1:2] == ["pip"]:
        name, start = "pip", 2
    conda = name in ("conda", "mamba", "micromamba")
    if not conda and not name.startswith("pip"):
        return None
    return (conda, words[start + 1 :]) if len(words) > start and text_of(words[start]) == "install" else None


def _read_packages(
    words: Sequence[Word],
    command: Command,
    source: str,
    tree: Tree,
    found: list[Claim],
    references: list[Reference],
    *,
    conda: bool,
) -> None:
    builder = ClaimBuilder(source, condition=command.condition)
    option = ""
    for word in words:
        text = text_of(word)
        if text is None:
            named = _PACKAGE_NAME.match(known_prefix(word)) if not option else None
            package = package_of(named[0]) if named is not None else None
            if package is not None:
                why = Unresolved(f"the version of {package.name} is known only at run time")
                found.append(builder.add("package", why, word, strength=Strength.CONFIG))
            option = ""
            continue
        is_nightly = _NIGHTLY.fullmatch(text.partition("=")[2] if text.startswith("--index") else text)
        if is_nightly and not (text == "--pre" and _names_releases(words)):
            found.append(builder.add("nightly_build", Known(text), word))
        if option or text.startswith("-"):
            name, _, value = (option, "", text) if option else text.partition("=")
            # pip accepts a long option in short: `--extra-index`.
            takes_word = name in _WITH_VALUE or name.startswith(_ADDRESSES)
            option = name if not option and not value and takes_word else ""
            # conda's `-c` is a channel.
            names_file = name in ("-r", "--requirement", "--constraint", "--file") or (name == "-c" and not conda)
            if names_file and value:
                target = tree.resolve(posixpath.join(command.directory or "", value), relative_to=word.span.path)
                if target is not None:
                    references.append(Reference(target, "requirements", word.span))
            elif (name in ("-i", "-f") or name.startswith(_ADDRESSES)) and cuda_of(value):
                found.append(builder.add("wheel_cuda", Known(cuda_of(value)), word, condition=""))
            continue
        package = conda_package_of(text) if conda else package_of(text)
        if package is not None:
            found.extend(
                claims(package, word.span, word.spelling, source, scope=WHOLE_JOB, condition=command.condition)
            )


# The context in which the ranks of a launch run: interpreter, directory, container, setup commands, environment.


_ACTIVATE = re.compile(r"(?:source|\.)\s+(?P<folder>\S+)/bin/activate\b")
#: Variables claimed for one launch; real scripts export a few dozen.
MAX_VARIABLES = 300
#: Variables that configure communication between ranks.
_LIBRARY_VARIABLE = re.compile(r"(?:NCCL|RCCL|TORCH_NCCL|TORCH_DISTRIBUTED|GLOO|TP_SOCKET|UCX|FI|PET)_")
#: Variables that belong to the shell, not to the job.
_SHELL_VARIABLES = frozenset(["PWD", "OLDPWD", "SHLVL", "_", "IFS", "OPTIND", "PS1", "PS4", "BASH", "BASHPID"])
#: Variables that a launched program or launcher reads, and that mean nothing to the shell itself.
_READ_BY_PROGRAMS = re.compile(
    r"(?:NCCL|RCCL|TORCH_NCCL|GLOO|UCX|FI|PADDLE|FLAGS|DMLC|HOROVOD)_\w+|(?:CUDA|HIP|ROCR)_VISIBLE_DEVICES"
    r"|MASTER_(?:ADDR|PORT)|NPROC_PER_NODE|NNODES|NODE_RANK|WORLD_SIZE|LOCAL_RANK|FORCE_TORCHRUN|OMP_NUM_THREADS"
    r"|CUDA_DEVICE_MAX_CONNECTIONS|PYTORCH_(?:CUDA_)?ALLOC_CONF|TF_CONFIG"
)
#: Options of programs around a launch whose value is a variable: `docker run -e`, `mpirun -x`, `tmux -e`.
_SETS_VARIABLE = re.compile(r"-[eExv]|-g?env|--(?:env|environment|export|setenv|variable)")
_ASSIGNMENT = re.compile(r"(?P<name>[A-Z][A-Z0-9_]{2,60})=.*", re.DOTALL)


def state_unread_variables(line: LaunchLine, visible: Mapping[str, Variable], tree: Tree) -> tuple[Claim, ...]:
    """Return claims about each variable that the launch should see but does not.

    Either it is assigned and not exported, or its assignment is among the arguments.
    """
    builder = ClaimBuilder("environment", line.scope, line.command.condition)
    _state_lost(builder, line)
    texts: dict[str, str] = {}
    for name in sorted(set(line.command.variables) - set(visible)):
        variable = line.command.variables[name]
        path = variable.span.path
        if not _READ_BY_PROGRAMS.fullmatch(name) or line.command.outer is not None:
            continue
        if path not in texts:
            file = tree.read(path)
            texts[path] = file.text if isinstance(file, SourceFile) else ""
        # What the script names again, it may pass on: `--master_port $MASTER_PORT`, `-x NCCL_DEBUG`.
        if len(re.findall(rf"\b{name}\b", texts[path])) == 1:
            spelling = variable.spelling if variable.spelling.startswith(name) else f"{name}={variable.spelling}"
            builder.add(
                "unexported_variable", Known(name), variable.span, spelling, condition=variable.condition or None
            )
    for before, word in itertools.pairwise(line.command.words):
        match = _ASSIGNMENT.fullmatch(word.spelling)
        if _SETS_VARIABLE.fullmatch(before.spelling):
            continue
        if match is not None and _READ_BY_PROGRAMS.fullmatch(match["name"]) and word.span not in _before(line):
            builder.add("variable_as_argument", Known(match["name"]), word)
    return tuple(builder.claims)


#: A file that an inner shell reads may set anything.
_SOURCES = re.compile(r"\bsource\b|(?:^|[\s;&'\"])\.\s")


def _state_lost(builder: ClaimBuilder, line: LaunchLine) -> None:
    """Add claims for each variable that a word in an inner shell needs, and that the shell around it does not pass
    on.
    """
    outer = line.command.outer
    if outer is None or any(_SOURCES.search(word.spelling) for word in outer.words):
        return
    for word in line.command.words:
        value = word.value
        for name in value.set_by_caller if isinstance(value, Unresolved) else ():
            assigned = outer.variables.get(name)
            if assigned is not None and name not in line.command.environment and not assigned.condition:
                place = ClaimBuilder("environment", line.scope)
                spelling = assigned.spelling if assigned.spelling.startswith(name) else f"{name}={assigned.spelling}"
                place.add("unexported_variable", Known(name), assigned.span, spelling)
                builder.add("unexported_variable", Known(name), word.span, word.spelling, because=tuple(place.claims))


def withheld_variable_claims(
    line: LaunchLine, wrappers: Sequence[Wrapper], visible: Mapping[str, Variable]
) -> tuple[Claim, ...]:
    """Return claims about each variable that the script exports and that the list of `srun --export` keeps from the
    tasks.
    """
    builder = ClaimBuilder("environment", line.scope, line.command.condition)
    srun = next((wrapper for wrapper in wrappers if wrapper.name == "srun"), None)
    option = srun.scanned.last("export") if srun is not None and not srun.passes_environment else None
    if option is None:
        return ()
    hidden = set(line.command.variables) - set(visible) - _SHELL_VARIABLES
    for name in sorted(name for name in hidden if line.command.variables[name].exported)[:MAX_VARIABLES]:
        variable = line.command.variables[name]
        own = ClaimBuilder("environment", line.scope, variable.condition)
        set_here = own.add("withheld_variable", Known(name), variable.span, f"{name}=")
        builder.add("withheld_variable", Known(name), option, because=(set_here,))
    return tuple(builder.claims)


def _before(line: LaunchLine) -> frozenset[Span]:
    """Return the words before the program, which may be `env NAME=value`."""
    found = set()
    for word in line.command.words:
        text = text_of(word) or ""
        if not _ASSIGNMENT.fullmatch(word.spelling) and text not in ("env", "sudo") and not text.startswith("-"):
            break
        found.add(word.span)
    return frozenset(found)


def state_environment(line: LaunchLine, visible: dict[str, Variable]) -> ClaimBuilder:
    """Return a builder with one claim per variable that the launch sees; secrets are named but their values are never
    shown.
    """
    builder = ClaimBuilder("environment", line.scope, line.command.condition)
    for name in sorted(visible)[:MAX_VARIABLES]:
        variable = visible[name]
        if name in _SHELL_VARIABLES or variable.span.snippet.lstrip().startswith("#SBATCH"):
            continue
        if is_secret(name):
            variable = replace(variable, value=Unresolved("redacted"), spelling=f"{name}={HIDDEN}")
        builder.add_setting(f"env.{name}", variable_setting(variable))
    return builder


def library_exports(final: Mapping[str, Variable], scope: Scope) -> tuple[Claim, ...]:
    """Return claims about the communication settings that a script without launches exports, because other scripts
    source it.
    """
    builder = ClaimBuilder("environment", scope)
    for name, variable in sorted(final.items()):
        if variable.exported and _LIBRARY_VARIABLE.match(name) and not is_secret(name):
            builder.add_setting(f"env.{name}", variable_setting(variable))
    return tuple(builder.claims)


def state_context(
    line: LaunchLine, wrappers: tuple[Wrapper, ...], interpreter: Word | None, tree: Tree
) -> tuple[ClaimBuilder, list[Reference]]:
    """Read the interpreter, working directory, container, setup commands, and the claims of mpirun wrappers."""
    builder = ClaimBuilder("shell", line.scope, line.command.condition)
    references: list[Reference] = []
    command = line.command
    prelude = _prelude(command)
    for word in prelude:
        builder.add("prelude", word.value, word)
    _state_interpreter(builder, line, interpreter, prelude)
    if command.directory is not None:
        builder.add(
            "working_directory", Known(command.directory or "."), command.span, "cd", strength=Strength.ENVIRONMENT
        )
    references.extend(_settings_file(line, tree))
    if any(wrapper.name in _OTHER_MACHINES for wrapper in wrappers):
        _state_variables_left_here(builder, line)
    for wrapper in wrappers:
        references.extend(_lock(line, wrapper, tree))
        _state_container(builder, wrapper)
        for given in wrapper.scanned.every("env_file"):
            references.extend(file_references(given, "environment", line, tree))
        if wrapper.name in ("mpirun", "horovodrun"):
            own = ClaimBuilder(wrapper.name, line.scope, line.command.condition)
            references.extend(mpi.state(own, wrapper.scanned, wrapper.word, line, tree))
            if wrapper.name == "horovodrun":
                state_unknown(own, wrapper.scanned)
                state_choices(own, wrapper.scanned, load_table("horovodrun"))
            state_launcher(own, wrapper.name, wrapper.word, wrapper.scanned, written=True)
            builder.claims.extend(own.claims)
        elif wrapper.name == "docker":
            repeated = frozenset(("ulimit", "network"))
            state_launcher(builder, "docker_run", wrapper.word, wrapper.scanned, repeated=repeated)
        elif wrapper.name == "apptainer":
            state_launcher(builder, "apptainer", wrapper.word, wrapper.scanned, written=True)
        elif wrapper.name == "jsrun":
            own = ClaimBuilder("jsrun", line.scope, line.command.condition)
            mpi.state_resource_sets(own, wrapper.scanned)
            builder.claims.extend(own.claims)
        elif wrapper.name in ("pdsh", "clush"):
            references.extend(_state_parallel_shell(builder, wrapper, line, tree))
    return builder, references


#: Programs that run a command on another machine, in an environment of its own.
_OTHER_MACHINES = ("ssh", "pdsh", "clush")
_USED_VARIABLE = re.compile(r"\$\{?(?P<name>[A-Za-z_][A-Za-z0-9_]{0,60})")


def _state_variables_left_here(builder: ClaimBuilder, line: LaunchLine) -> None:
    """Add claims for each variable of this script that a command for another machine leaves to the shell there."""
    here = line.command.outer.variables if line.command.outer is not None else {}
    for word in line.words:
        for match in _USED_VARIABLE.finditer(word.spelling):
            variable = here.get(match["name"])
            # In double quotes this script expands it, and takes its own value.
            inside = isinstance(word.value, Unresolved) and match["name"] in word.value.set_by_caller
            if variable is not None and inside and match["name"] not in line.command.variables:
                name, condition = Known(match["name"]), variable.condition or None
                builder.add("variable_left_here", name, word, condition=condition)


def _settings_file(line: LaunchLine, tree: Tree) -> list[Reference]:
    """Return the file that NCCL_CONF_FILE names, from which NCCL takes settings that the environment does not have."""
    variable = line.command.environment.get("NCCL_CONF_FILE")
    targets = [relative(path, line, tree) for path in paths_of(variable.value)] if variable is not None else []
    return [Reference(path, "environment", variable.span, line.scope) for path in targets if path and variable]


def _lock(line: LaunchLine, wrapper: Wrapper, tree: Tree) -> list[Reference]:
    """Return the lock file of `uv run`, `poetry run` and the like, which is in the directory they run in."""
    file = file_named(LOCKS.get(wrapper.name), line, tree)
    return [Reference(file.path, LOCK_ROLE, wrapper.word.span)] if file is not None else []


def _state_parallel_shell(builder: ClaimBuilder, wrapper: Wrapper, line: LaunchLine, tree: Tree) -> list[Reference]:
    """Add claims for the hosts of `pdsh -w node[0-3]`: the line is started once on each of them."""
    own = ClaimBuilder(wrapper.name, line.scope, line.command.condition, Strength.SCHEDULER)
    hosts = wrapper.scanned.last("hosts")
    if hosts is not None:
        own.add("hosts", slurm.hosts_of(hosts.value), hosts)
        own.add("nodes", count_of(slurm.hosts_of(hosts.value)), hosts)
    own.add("tasks_per_node", Known(1), wrapper.word)
    builder.claims.extend(own.claims)
    return list(file_references(wrapper.scanned.last("hostfile"), "hostfile", line, tree))


def _prelude(command: Command) -> tuple[Word, ...]:
    found: list[Word] = list(command.prelude)
    outer = command.outer
    while outer is not None:
        found = [word for word in outer.prelude if word not in found] + found
        outer = outer.outer
    return tuple(found)


def _state_interpreter(
    builder: ClaimBuilder, line: LaunchLine, interpreter: Word | None, prelude: tuple[Word, ...]
) -> None:
    word = interpreter or line.words[0]
    text = text_of(word) or ""
    shown = [text_of(each) or each.spelling for each in reversed(prelude)]
    folder = next((match["folder"] for each in shown if (match := _ACTIVATE.search(each))), None)
    value: Value = word.value
    if interpreter is None and text.startswith("/"):
        # pip installs a launcher beside the interpreter that runs it.
        value = Known(posixpath.join(posixpath.dirname(text), "python"))
    elif folder is not None and not (interpreter is not None and ("/" in text or not text)):
        value = Unresolved(f"{folder}/bin/python") if "$" in folder else Known(f"{folder}/bin/python")
    elif interpreter is None:
        return
    builder.add("interpreter", value, word)


def _state_container(builder: ClaimBuilder, wrapper: Wrapper) -> None:
    pyxis = wrapper.scanned.last("container_image", "image")
    image = wrapper.image or (pyxis if wrapper.name in ("srun", "shifter") else None)
    if image is not None:
        name = "pyxis" if wrapper.image is None and wrapper.name == "srun" else wrapper.name
        builder.add("container", lift(lambda item: f"{name} {item}", image.value), image)
        builder.add_setting("working_directory", wrapper.scanned.last("workdir", "container_workdir"))


def state_task_counts(
    line: LaunchLine,
    wrappers: tuple[Wrapper, ...],
    header: dict[str, GivenOption],
    *,
    elsewhere: bool,
    reaches_nodes: bool,
    scheduler: str = "slurm",
) -> ClaimBuilder:
    """Return a builder with claims about how many copies of the line run and on how many nodes.

    Args:
        line: the launch line.
        wrappers: the programs before it.
        header: the options of the batch header; empty if there is none.
        elsewhere: whether the script starts other programs on other nodes; then nothing is stated for a line without
        srun.
        reaches_nodes: whether the launcher reaches other nodes itself, as deepspeed does.
        scheduler: the scheduler of the header.
    """
    builder = ClaimBuilder(scheduler, line.scope, line.command.condition, Strength.SCHEDULER)
    srun = next((wrapper for wrapper in reversed(wrappers) if wrapper.name == "srun"), None)
    if srun is not None:
        _state_srun(builder, srun, header)
    elif header and not wrappers_reach_nodes(wrappers) and not elsewhere and not reaches_nodes:
        _state_without_starter(builder, line, header)
    return builder


def wrappers_reach_nodes(wrappers: tuple[Wrapper, ...]) -> bool:
    """Return whether a wrapper runs the line on other nodes, or may."""
    return any(w.name in _REMOTE_STARTERS for w in wrappers)


_REMOTE_STARTERS = (
    *("srun", "mpirun", "horovodrun", "ssh", "pdsh", "clush", "ibrun", "jsrun", "aprun", "pbsdsh", "blaunch"),
)


def _state_without_starter(builder: ClaimBuilder, line: LaunchLine, header: dict[str, GivenOption]) -> None:
    word = line.words[0]
    starter = "srun" if builder.source == "slurm" else "mpiexec or ssh"
    spelling = f"{word.spelling} (without {starter}: runs on the first node only)"
    of_header = ClaimBuilder(builder.source, strength=Strength.SCHEDULER)
    because = tuple(slurm.state(of_header, {k: v for k, v in header.items() if k == "nodes"}).values())
    for quantity in ("nodes", "tasks_per_node"):
        builder.add(quantity, Known(1), word, spelling, because=because)


def _state_srun(builder: ClaimBuilder, srun: Wrapper, header: dict[str, GivenOption]) -> None:
    options = slurm.from_options(srun.scanned.given)
    counts = (options[dest].value for dest in ("nodes", "ntasks") if dest in options)
    if not options.keys().isdisjoint(("nodelist", "relative")) and any(one in (Known("1"), Known(1)) for one in counts):
        # One step per node (`srun -N1 -n1 -w "$node" torchrun --node_rank=$i`); together they are the job.
        for dest in ("nodes", "ntasks", "nodelist"):
            options.pop(dest, None)
        slurm.state(builder, options)
        builder.add("tasks_per_node", Known(1), srun.word)
        builder.add("single_node_step", Known(True), srun.word)
        return
    outer = slurm.state(ClaimBuilder("slurm", strength=Strength.SCHEDULER), header)
    own = slurm.state(builder, options)
    nodes = own.get("nodes") or outer.get("nodes")
    tasks = own.get("tasks")
    if tasks is not None and "nodes" not in own and nodes is not None:
        fewer = lift(lambda t, n: min(int(str(t)), int(str(n))), tasks.value, nodes.value)
        if fewer != nodes.value and not isinstance(fewer, Unresolved):
            builder.add("nodes", fewer, tasks, f"{tasks.spelling} (fewer tasks than nodes)", because=(tasks, nodes))
        elif "tasks_per_node" not in own:
            slurm.add_tasks_per_node(builder, tasks, nodes)
    tasks_per_node = own.get("tasks_per_node") or (outer.get("tasks_per_node") if "nodes" in own else None)
    if tasks is None and nodes is not None and tasks_per_node is not None:
        # The task count derived from the header alone does not apply to this step.
        slurm.add_total_tasks(builder, nodes, tasks_per_node)
    sets_tasks = any("tasks" in claims_of or "tasks_per_node" in claims_of for claims_of in (own, outer))
    if nodes is not None and not sets_tasks and not srun.scanned.incomplete and "gpus_per_task" not in header:
        spelling = f"{srun.word.spelling} (without --ntasks: one task per node)"
        builder.add("tasks_per_node", Known(1), srun.word, spelling, strength=Strength.DEFAULT, because=(nodes,))
    elif "nodes" in own and "tasks" not in own and "tasks_per_node" not in own and "tasks_per_node" not in outer:
        outer_tasks = outer.get("tasks")
        if outer_tasks is not None and nodes is not None:
            slurm.add_tasks_per_node(builder, outer_tasks, nodes)
