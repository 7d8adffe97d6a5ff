"""What `docker run` and `podman run` give to the container they start: GPUs, shared memory, network, devices.

Options: Docker 27 `docker run` reference; Podman 5 manual; Apptainer 1.3 user guide. A container that runs a launch
line is spoken of in the scope of that launch, any other one in a scope of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from preflight.job import Claim, Known, Plain, Scope, Span, Strength, Unresolved, Value, lift
from preflight.lazy.patterns import lazy_pattern
from preflight.sources.base import Command, Word
from preflight.sources.launchers.options import Given, Scanned, head, text_of
from preflight.sources.launchers.stating import Stating
from preflight.sources.launchers.wrappers import Wrapper, peel, program_name

#: They share the host's network, memory and devices, but the driver's libraries only on demand.
_SHARING = frozenset(("apptainer", "singularity"))
_NV_VARIABLES = ("APPTAINER_NV", "SINGULARITY_NV", "APPTAINER_NVCCLI", "APPTAINER_ROCM")
ENGINES = frozenset(("docker", "podman", "nvidia-docker")) | _SHARING
#: Devices that bring accelerators without `--gpus`: NVIDIA by hand or by CDI, ROCm, Habana.
_GPU_DEVICE = lazy_pattern(r"/dev/nvidia|nvidia\.com/gpu|amd\.com/gpu|/dev/kfd|/dev/dri|/dev/accel|/dev/davinci")
_SHM_MOUNT = lazy_pattern(r"(?:^|[:=,])/dev/shm(?=$|[:,/])|^/dev:/dev")
_SIZE = lazy_pattern(r"([0-9]*\.?[0-9]+)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 1 / 1024**2, "b": 1 / 1024**2, "k": 1 / 1024, "m": 1.0, "g": 1024.0, "t": 1024.0**2}
_MOST_WORDS = 12
_LONGEST_COMMAND = 1000


def container_starts(command: Command) -> Iterator[Wrapper]:
    """The containers a command starts, outermost first; those of the commands around it come first."""
    for wrapper in peel(command).wrappers:
        if wrapper.name in ENGINES and wrapper.image is not None and _is_run(wrapper):
            yield wrapper


def _is_run(wrapper: Wrapper) -> bool:
    """`run` and not `exec`: only a new container is given anything."""
    words = wrapper.command.words
    at = next((index for index, word in enumerate(words) if word.span == wrapper.word.span), None)
    if at is None:
        return False
    allowed = ("run", "exec") if wrapper.name in _SHARING else ("run", "create")
    return any(text_of(word) in allowed for word in words[at + 1 : at + 6])


def state_containers(commands: Sequence[Command], launches: Mapping[Span, Sequence[Scope]]) -> tuple[Claim, ...]:
    """State what every container is given; `launches`: the scopes of the launches inside, by the engine's word."""
    claims: list[Claim] = []
    seen: set[Span] = set()
    for command in commands:
        if program_name(command.words) in _NEVER or not _names_engine(command):
            continue
        for wrapper in container_starts(command):
            if wrapper.word.span in seen:
                continue
            seen.add(wrapper.word.span)
            own = Scope(launch=f"{wrapper.word.span.path}:{wrapper.word.span.line}")
            for scope in launches.get(wrapper.word.span, (own,)):
                stating = Stating("container", scope, command.condition)
                _state(stating, wrapper, command)
                claims.extend(stating.claims)
    return tuple(claims)


def _names_engine(command: Command) -> bool:
    names = [(text_of(word) or "").rpartition("/")[2] for word in command.words[:60]]
    return not ENGINES.isdisjoint(names)


_NEVER = frozenset(("echo", "printf", "which", "type"))


def _state(stating: Stating, wrapper: Wrapper, command: Command) -> None:
    image = wrapper.image
    assert image is not None
    given = wrapper.scanned
    verb = "exec" if wrapper.name in _SHARING else "run"
    spelling = f"{wrapper.word.spelling} {verb} ... {image.spelling}"
    stating.say("container_run", image.value, wrapper.word.span, spelling)
    words = _behind(wrapper, command)
    if words:
        stating.say("container_command", _joined(words), words[0].span, " ".join(w.spelling for w in words))
    if wrapper.name in _SHARING:
        _state_sharing(stating, wrapper)
        return
    _state_gpus(stating, wrapper)
    _state_shm(stating, given)
    stating.given("container_network", given.last("network"))
    for ulimit in given.every("ulimit"):
        if head_of(ulimit).startswith("memlock"):
            stating.given("container_memlock", ulimit)
    if given.last("privileged") is not None:
        stating.given("pod_capability", given.last("privileged"), lambda _: Known("privileged"))
    for added in given.every("cap_add"):
        stating.given("pod_capability", added)
    for device in given.every("device"):
        if "/dev/infiniband" in head_of(device):
            stating.given("host_path", device)
    if given.incomplete:
        # `docker run $OPTIONS image`: what was not seen may be among them.
        stating.say("container_gpus", Unresolved("options from outside"), wrapper.word.span, spelling)
        stating.say("shm_mib", Unresolved("options from outside"), wrapper.word.span, spelling)
        stating.say("container_network", Unresolved("options from outside"), wrapper.word.span, spelling)


def _state_sharing(stating: Stating, wrapper: Wrapper) -> None:
    given, word = wrapper.scanned, wrapper.word
    stating.given("container_gpus", given.last("nv"), lambda _: Known("nv"))
    for name in _NV_VARIABLES:
        variable = wrapper.command.environment.get(name)
        if variable is not None:
            stating.say("container_gpus", variable.value, variable.span, variable.spelling)
    if given.incomplete:
        stating.say("container_gpus", Unresolved("options from outside"), word.span, word.spelling)
    stating.say("container_network", Known("host"), word.span, word.spelling)
    stating.say("shm_mib", Unresolved("the /dev/shm of the host"), word.span, word.spelling)


def head_of(given: Given) -> str:
    """What is known of an option's value."""
    return str(given.value.value) if isinstance(given.value, Known) else ""


def _state_gpus(stating: Stating, wrapper: Wrapper) -> None:
    given = wrapper.scanned
    option = given.last("gpus")
    if option is not None:
        stating.given("container_gpus", option)
        count = lift(_gpu_count, option.value)
        if not isinstance(count, Unresolved):
            stating.given("gpus_per_node", option, lambda _: count, strength=Strength.SCHEDULER)
        return
    runtime = given.last("runtime")
    devices = [each for each in given.every("device") if _GPU_DEVICE.search(head_of(each))]
    mounts = [each for each in given.every("volume") if _GPU_DEVICE.search(head_of(each))]
    if runtime is not None and head_of(runtime) != "runc":
        stating.given("container_gpus", runtime)
    elif devices or mounts:
        stating.given("container_gpus", (devices or mounts)[0])
    elif given.last("privileged") is not None:
        stating.given("container_gpus", given.last("privileged"), lambda _: Known("privileged"))
    elif wrapper.word.spelling.strip("\"'").endswith("nvidia-docker"):
        stating.say("container_gpus", Known("nvidia-docker"), wrapper.word.span, wrapper.word.spelling)
    elif any(isinstance(each.value, Unresolved) for each in (*given.every("device"), *given.every("hooks"))):
        stating.say("container_gpus", Unresolved("devices from outside"), wrapper.word.span, wrapper.word.spelling)


def _gpu_count(item: Plain) -> Plain:
    """`4`, `"device=0,1"`, `device=2`; `all` is as many as there are."""
    text = str(item).strip("\"'")
    if text.isdigit():
        return int(text)
    if text.startswith("device="):
        return len([part for part in text.removeprefix("device=").strip("\"'").split(",") if part])
    raise ValueError(f"{text}: as many as the host has")


def _state_shm(stating: Stating, given: Scanned) -> None:
    size, ipc = given.last("shm_size"), given.last("ipc")
    if size is not None:
        stating.given("shm_mib", size, lambda value: lift(mebibytes, value))
    if ipc is not None and head_of(ipc) not in ("private", "none", "shareable"):
        stating.given("shm_mib", ipc, lambda _: Unresolved("the /dev/shm of the host, or of another container"))
    for mount in (*given.every("volume"), *given.every("tmpfs")):
        if _SHM_MOUNT.search(head_of(mount)) or (isinstance(mount.value, Unresolved) and "shm" in mount.spelling):
            stating.given("shm_mib", mount, lambda _: Unresolved("a volume mounted there"))


def mebibytes(item: Plain) -> Plain:
    """`8g`, `512m`, `1gb`, a number of bytes. Raises ValueError for what is no size."""
    match = _SIZE.fullmatch(str(item).strip())
    if match is None:
        raise ValueError(f"{item!r} is no size")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def _behind(wrapper: Wrapper, command: Command) -> tuple[Word, ...]:
    """The words behind the image."""
    words = wrapper.command.words
    for index, word in enumerate(words):
        if wrapper.image is not None and word.span == wrapper.image.span:
            return tuple(words[index + 1 :][:_MOST_WORDS])
    return ()


def _joined(words: Sequence[Word]) -> Value:
    return Known(" ".join(text_of(word) or head(word) or "?" for word in words)[:_LONGEST_COMMAND])
