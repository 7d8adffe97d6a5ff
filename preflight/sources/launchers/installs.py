"""What surrounds a launch on its line: the resources of a container, and packages that are installed before.

Options: Docker 27 `docker run` reference; Podman 5 manual; Apptainer 1.3 user guide. Claims about a container that runs
a launch line have the scope of that launch; any other container has its own scope.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from preflight._util.budget import note_skipped
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
from preflight.sources.base import Command, Reading, Tree, Word
from preflight.sources.configs.packages import claims, conda_package_of, cuda_of, package_of
from preflight.sources.launchers.claim_builder import ClaimBuilder
from preflight.sources.launchers.option_parser import ScannedLine, is_python, known_prefix, known_text, text_of
from preflight.sources.launchers.wrappers import Wrapper, program_name, strip_wrappers

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
_MAX_WORDS = 12
_MAX_COMMAND_LENGTH = 1000


def container_starts(command: Command) -> Iterator[Wrapper]:
    """Yield the containers that a command starts, outermost first, after those of the commands around it."""
    for wrapper in strip_wrappers(command).wrappers:
        if wrapper.name in ENGINES and wrapper.image is not None and _starts_container(wrapper):
            yield wrapper


def _starts_container(wrapper: Wrapper) -> bool:
    """Whether this is `run`, not `exec` in a running container: only a new container gets resources."""
    words = wrapper.command.words
    at = next((index for index, word in enumerate(words) if word.span == wrapper.word.span), None)
    if at is None:
        return False
    allowed = ("run", "exec") if wrapper.name in _HPC_ENGINES else ("run", "create")
    return any(text_of(word) in allowed for word in words[at + 1 : at + 6])


def state_containers(commands: Sequence[Command], launches: Mapping[Span, Sequence[Scope]]) -> tuple[Claim, ...]:
    """State the resources of every container.

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
                _state_container(builder, wrapper)
                claims.extend(builder.claims)
    return tuple(claims)


def _names_engine(command: Command) -> bool:
    names = [(text_of(word) or "").rpartition("/")[2] for word in command.words[:60]]
    return not ENGINES.isdisjoint(names)


_ONLY_MENTIONS = frozenset(("echo", "printf", "which", "type"))


def _state_container(builder: ClaimBuilder, wrapper: Wrapper) -> None:
    image = wrapper.image
    assert image is not None
    given = wrapper.scanned
    subcommand = "exec" if wrapper.name in _HPC_ENGINES else "run"
    spelling = f"{wrapper.word.spelling} {subcommand} ... {image.spelling}"
    builder.add("container_run", image.value, wrapper.word.span, spelling)
    words = _container_words(wrapper)
    if words:
        builder.add("container_command", _joined_text(words), words[0].span, " ".join(w.spelling for w in words))
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
    for device in given.every("device"):
        if "/dev/infiniband" in known_text(device):
            builder.add_setting("host_path", device)
    for volume in given.every("volume"):
        if "/dev/infiniband" in known_text(volume):
            builder.add_setting("host_path", volume)
    if given.incomplete:
        builder.add("host_path", _UNKNOWN_OPTIONS, wrapper.word.span, spelling)
        # `docker run $OPTIONS image`: the variable may hold any option that is missing on the line.
        if not any(claim.quantity == "container_gpus" for claim in builder.claims):
            builder.add("container_gpus", _UNKNOWN_OPTIONS, wrapper.word.span, spelling)
        builder.add("shm_mib", _UNKNOWN_OPTIONS, wrapper.word.span, spelling)
        builder.add("container_network", _UNKNOWN_OPTIONS, wrapper.word.span, spelling)


def _state_hpc_container(builder: ClaimBuilder, wrapper: Wrapper) -> None:
    given, word = wrapper.scanned, wrapper.word
    builder.add_setting("container_gpus", given.last("nv"), lambda _: Known("nv"))
    for name in _NV_VARIABLES:
        variable = wrapper.command.environment.get(name)
        if variable is not None:
            builder.add("container_gpus", variable.value, variable.span, variable.spelling)
    if given.incomplete:
        builder.add("container_gpus", _UNKNOWN_OPTIONS, word.span, word.spelling)
    builder.add("container_network", Known("host"), word.span, word.spelling)
    builder.add("shm_mib", Unresolved("the /dev/shm of the host"), word.span, word.spelling)


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
        builder.add("container_gpus", Known("nvidia-docker"), wrapper.word.span, wrapper.word.spelling)
    elif any(isinstance(option.value, Unresolved) for option in (*given.every("device"), *given.every("hooks"))):
        builder.add("container_gpus", _UNKNOWN_DEVICES, wrapper.word.span, wrapper.word.spelling)


def _gpu_count(item: Plain) -> Plain:
    """The number of GPUs in `4`, `"device=0,1"` or `device=2`; ValueError for `all`."""
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
    """The words after the image."""
    words = wrapper.command.words
    for index, word in enumerate(words):
        if wrapper.image is not None and word.span == wrapper.image.span:
            return tuple(words[index + 1 :][:_MAX_WORDS])
    return ()


def _joined_text(words: Sequence[Word]) -> Value:
    return Known(" ".join(text_of(word) or known_prefix(word) or "?" for word in words)[:_MAX_COMMAND_LENGTH])


#: Options of `pip install` and `conda install` that take the next word, from their own help (pip 25.0, conda 24.11).
_WITH_VALUE = frozenset(
    (
        *("-c", "--constraint", "-r", "--requirement", "-e", "--editable", "-t", "--target", "--platform"),
        *("--python-version", "--implementation", "--abi", "--root", "--prefix", "--src", "--upgrade-strategy"),
        *("-C", "--config-settings", "--global-option", "--no-binary", "--only-binary", "--progress-bar", "--report"),
        *("--root-user-action", "-i", "-f", "--log", "--proxy"),
        *("--retries", "--timeout", "--exists-action", "--trusted-host", "--cert", "--client-cert", "--cache-dir"),
        *("--use-feature", "--use-deprecated", "--python", "--keyring-provider", "--group", "--build-option"),
        *("-n", "--name", "-p", "--channel", "--file"),
    )
)
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
    """Whether a command names the release of all that it installs: `--pre` then changes nothing."""
    named = [text for word in words if (text := text_of(word)) is not None and package_of(text) is not None]
    frameworks = [text for text in named if not text.startswith(("-", "http"))]
    return bool(frameworks) and all("==" in text for text in frameworks)


def read_installs(commands: Iterable[Command], tree: Tree) -> Reading:
    """State one claim per install command and one per framework it names, and refer to requirement files."""
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
            found.append(
                Claim(
                    "installing_line",
                    Known(line),
                    command.span,
                    shown,
                    source,
                    strength=Strength.FLAG,
                    condition=command.condition,
                )
            )
        _read_packages(words, command, source, tree, found, references, conda=conda)
    return Reading(claims=tuple(found), references=tuple(references))


def _install_words(words: Sequence[Word]) -> tuple[bool, Sequence[Word]] | None:
    """Whether conda installs, and the words after `install`; None for any other command."""
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
    option = ""
    for word in words:
        text = text_of(word)
        if text is None:
            named = _PACKAGE_NAME.match(known_prefix(word)) if not option else None
            package = package_of(named[0]) if named is not None else None
            if package is not None:
                why = Unresolved(f"the version of {package.name} is known only at run time")
                claim = Claim(
                    "package",
                    why,
                    word.span,
                    word.spelling,
                    source,
                    strength=Strength.CONFIG,
                    condition=command.condition,
                )
                found.append(claim)
            option = ""
            continue
        is_nightly = _NIGHTLY.fullmatch(text.partition("=")[2] if text.startswith("--index") else text)
        if is_nightly and not (text == "--pre" and _names_releases(words)):
            found.append(
                Claim("nightly_build", Known(text), word.span, word.spelling, source, condition=command.condition)
            )
        if option or text.startswith("-"):
            name, _, value = (option, "", text) if option else text.partition("=")
            option = name if not option and not value and _takes_value(name) else ""
            # conda's `-c` is a channel.
            names_file = name in ("-r", "--requirement", "--constraint", "--file") or (name == "-c" and not conda)
            if names_file and value:
                target = tree.resolve(_path_from_directory(command, value), relative_to=word.span.path)
                if target is not None:
                    references.append(Reference(target, "requirements", word.span))
            elif (name in ("-i", "-f") or name.startswith(_ADDRESSES)) and cuda_of(value):
                claim = Claim("wheel_cuda", Known(cuda_of(value)), word.span, word.spelling, source)
                found.append(claim)
            continue
        package = conda_package_of(text) if conda else package_of(text)
        if package is not None:
            found.extend(
                claims(package, word.span, word.spelling, source, scope=WHOLE_JOB, condition=command.condition)
            )


def _takes_value(name: str) -> bool:
    """Whether an option takes the next word; pip accepts a long one in short: `--extra-index`."""
    return name in _WITH_VALUE or name.startswith(_ADDRESSES)


def _path_from_directory(command: Command, path: str) -> str:
    """A path relative to the command's working directory, when that is known."""
    return f"{command.directory}/{path}" if command.directory and not path.startswith("/") else path
