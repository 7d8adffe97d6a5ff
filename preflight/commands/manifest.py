"""Kubernetes manifests that check the pods of a job: an init container, or a separate Job.

The check runs in the job's own image with the job's devices, volumes and variables, before the ranks start, and checks
its own pod. The files of the job that the check needs are stored in a ConfigMap.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preflight import __version__
from preflight._util import regular_file
from preflight._util.redaction import redact_tree
from preflight._util.spans import Span
from preflight._util.usage_error import UsageError
from preflight._util.yaml_output import to_yaml
from preflight.executors.kubernetes_pods import PodRole, PodSource, build_job, choose_source, container_of
from preflight.model.job import Claim
from preflight.model.recording import PROPERTIES, Facts, NodeRecord, Recording, Requirement, requirement_claim
from preflight.plugins import registry
from preflight.sources.formats.structured import Kind, Member, Node

#: A ConfigMap is limited to 1 MiB (kubernetes/api, core/v1 ConfigMap), including its own keys and metadata.
MAX_BYTES = 900 * 1024
#: Time limit of a Job of checks, including the pull of the image.
JOB_S = 1800
_VOLUME = "preflight-job"
_MOUNT_PATH = "/preflight"
#: Fields of the ranks' container that the check must share to see the same environment.
_SHARED = ("env", "envFrom", "resources", "volumeMounts", "volumeDevices", "securityContext", "workingDir")


@dataclass(frozen=True, slots=True)
class ManifestOptions:
    """Options of the added check.

    Args:
        name: the object in the manifest; needed only if that contains several jobs.
        container: the container whose image, devices and variables to use; empty for the one with devices.
        image: an image with preflight installed, instead of the job's own.
        install: whether to install preflight with pip at the start, only in that container.
        lenient: whether to only report findings and let the job start.
        options: additional options of `preflight check`.
    """

    name: str = ""
    container: str = ""
    image: str = ""
    install: bool = False
    lenient: bool = False
    options: tuple[str, ...] = ()


def pieces(text: str, files: Mapping[str, str], options: ManifestOptions) -> str:
    """Return the parts to add to the pods, as YAML with comments on their positions."""
    source = choose_source(text, options.name)
    parts = [
        _to_yaml(_config_map(source, files)),
        _comment("Add to the pod's spec, next to `containers` (an existing list continues after the new item):"),
        _to_yaml({"volumes": [_volume(source, files)]}),
    ]
    for role, container in _init_containers(source, files, options):
        of = f" of {role.name}" if role.name else ""
        parts += [_comment(f"Add to the spec of the pods{of}:"), _to_yaml({"initContainers": [container]})]
    first = _comment(
        f"For {source.kind} {source.name}: apply this ConfigMap first, then add the following to the manifest.",
        "`preflight manifest --as patch` prints the whole manifest with this change.",
    )
    return "".join((first, parts[0], "---\n", *parts[1:]))


def patch_manifest(text: str, files: Mapping[str, str], options: ManifestOptions) -> str:
    """Return the manifest with the init container, then the ConfigMap. Raises UsageError if it must be rewritten."""
    source = choose_source(text, options.name)
    insertions: dict[int, str] = {}
    for role, container in _init_containers(source, files, options):
        spec = role.template_node.at("spec")
        if spec is None or not _is_block(text, spec):
            raise UsageError(f"the pods of {role.name or source.name} are not written in block style; {_BY_HAND}")
        for key, item in (("initContainers", container), ("volumes", _volume(source, files))):
            place, added = _insertion(text, spec, key, item)
            # Roles may share one template through an anchor, which is then edited once.
            insertions[place] = insertions.get(place, "") + ("" if added in insertions.get(place, "") else added)
    result = text
    for place in sorted(insertions, reverse=True):
        result = result[:place] + insertions[place] + result[place:]
    _require_only_ours_added(text, result, options.name)
    end = "" if result.endswith("\n") else "\n"
    return result + end + "---\n" + _to_yaml(_config_map(source, files))


_BY_HAND = "use `--as init` and add the output by hand"


def gate_job(text: str, files: Mapping[str, str], options: ManifestOptions) -> str:
    """Return a Job that checks as many nodes as the job has, with one pod per node that is like the job's pods."""
    source = choose_source(text, options.name)
    role = max(source.trainers, key=lambda each: each.count or 0)
    count = sum(each.count or 0 for each in source.trainers)
    if not count:
        raise UsageError(
            "the manifest does not set the number of pods, which `--as job` needs; set it, or use `--as init`"
        )
    name = _name(source)
    job = build_job(
        source,
        role,
        name=name,
        namespace=source.namespace or "default",
        count=count,
        lifetime_s=JOB_S,
        container=options.container,
        command=_command(files, options),
    )
    if not source.namespace:
        del job["metadata"]["namespace"]
    spec = job["spec"]
    # A failing node must not end the checks on the others.
    del spec["backoffLimit"], spec["ttlSecondsAfterFinished"]
    spec["backoffLimitPerIndex"] = 0
    pod = spec["template"]["spec"]
    pod["volumes"] = [*(pod.get("volumes") or []), _volume(source, files)]
    (container,) = pod["containers"]
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), _mount()]
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    if options.image:
        container["image"] = options.image
    where = f" -n {source.namespace}" if source.namespace else ""
    first = _comment(
        f"Checks as many nodes as {source.kind} {source.name} uses, with its image, devices and volumes:",
        f"  kubectl apply{where} -f FILE && kubectl wait{where} --for=condition=complete --timeout=600s job/{name}",
        f"  kubectl logs{where} -l preflight/run={name} --prefix --tail=-1",
        "A failing pod has an error-level finding; remove Job and ConfigMap with `kubectl delete`.",
    )
    return first + _to_yaml(_config_map(source, files)) + "---\n" + _to_yaml(job)


def _name(source: PodSource) -> str:
    """Return a name for the added objects, within the 63 characters that labels and pods allow."""
    plain = re.sub(r"[^a-z0-9-]+", "-", source.name.lower()).strip("-") or "job"
    return f"preflight-{plain}"[:50].rstrip("-")


def _config_map(source: PodSource, files: Mapping[str, str]) -> dict[str, Any]:
    size = sum(len(path) + len(content.encode()) for path, content in files.items())
    if size > MAX_BYTES:
        raise UsageError(
            f"the job's files have {size} bytes, but a ConfigMap can hold at most {MAX_BYTES}; name fewer files"
        )
    metadata = {"name": _name(source), **({"namespace": source.namespace} if source.namespace else {})}
    data = {_key(index): _redact(path, content) for index, (path, content) in enumerate(files.items())}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _redact(path: str, content: str) -> str:
    from preflight.sources.base import SourceFile
    from preflight.sources.secrets import shown_lines

    return shown_lines(SourceFile(path, content, "", 0))(content)


def _key(index: int) -> str:
    return f"file-{index}"


def _volume(source: PodSource, files: Mapping[str, str]) -> dict[str, Any]:
    items = [{"key": _key(index), "path": path} for index, path in enumerate(files)]
    return {"name": _VOLUME, "configMap": {"name": _name(source), "items": items}}


def _mount() -> dict[str, Any]:
    return {"name": _VOLUME, "mountPath": _MOUNT_PATH, "readOnly": True}


def _init_containers(
    source: PodSource, files: Mapping[str, str], options: ManifestOptions
) -> Iterator[tuple[PodRole, dict[str, Any]]]:
    for role in source.trainers:
        chosen = container_of(role.template, options.container)
        made: dict[str, Any] = {
            "name": "preflight",
            "image": options.image or chosen.get("image") or "",
            "command": _command(files, options),
            **{key: chosen[key] for key in _SHARED if key in chosen},
        }
        made["volumeMounts"] = [*(chosen.get("volumeMounts") or []), _mount()]
        made["terminationMessagePolicy"] = "FallbackToLogsOnError"
        yield role, made


#: Runs the preflight installed in the folder that the first argument names.
_RUN_FROM = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('preflight', alter_sys=True)"
_DISTRIBUTION = "preflight-train"


def _command(files: Mapping[str, str], options: ManifestOptions) -> list[str]:
    """Return a shell line that checks the pod in which it runs; its exit code is preflight's."""
    paths = [f"{_MOUNT_PATH}/{path}" for path in files]
    check = [
        *("check", *paths, "--root", _MOUNT_PATH),
        *("--on", "local", "--hosts", "local", "--trust-job", "--until", "node"),
        # The check runs in one pod of several, and the names of the others resolve only once they are ready.
        *("--ignore", "NOD002,NAM", "--allow-incomplete", *options.options),
    ]
    # Isolated: the image's working directory, or a mounted one, may contain modules of any name.
    line = " ".join(shlex.quote(word) for word in check) + ' --python "$(command -v python3)"'
    if options.install:
        install = "python3 -I -m pip install --quiet --disable-pip-version-check --only-binary :all:"
        line = (
            f'into=$(mktemp -d) && {install} --target "$into" {_DISTRIBUTION}=={__version__} && '
            f'python3 -I -c {shlex.quote(_RUN_FROM)} "$into" {line}'
        )
    else:
        line = f"python3 -I -m preflight {line}"
    if options.lenient:
        line += " || true"
    return ["/bin/sh", "-c", line]


def _insertion(text: str, spec: Node, key: str, item: Mapping[str, Any]) -> tuple[int, str]:
    """Return the offset for a new item in the list `key` of a pod, and the text to insert."""
    containers = spec.member("containers")
    assert containers is not None
    member = spec.member(key)
    if member is None:
        indent = _column(text, containers.key_start)
        return _line_start(text, containers.key_start), _indent(_to_yaml({key: [item]}), indent)
    if member.node.kind is not Kind.ARRAY or not member.node.items or not _is_list(text, member):
        raise UsageError(f"`{key}` is not written as a block; {_BY_HAND}")
    first = _line_start(text, member.node.items[0].start)
    dash = text.index("-", first) - first
    return first, _indent(_to_yaml([item]), dash)


def _is_block(text: str, node: Node) -> bool:
    return node.kind is Kind.OBJECT and text[node.start] not in "{*&" and node.at("containers") is not None


def _is_list(text: str, member: Member) -> bool:
    """Return whether each item of a list is on its own line under the key, after a hyphen."""
    start = _line_start(text, member.node.items[0].start)
    return start > member.key_end and text[start : member.node.items[0].start].strip() == "-"


def _line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1


def _column(text: str, place: int) -> int:
    start = _line_start(text, place)
    if text[start:place].strip():
        raise UsageError(f"other text precedes `{text[place : place + 10]}` on its line; {_BY_HAND}")
    return place - start


def _indent(block: str, columns: int) -> str:
    return "".join(" " * columns + line if line.strip() else line for line in block.splitlines(keepends=True))


def _require_only_ours_added(before: str, after: str, name: str) -> None:
    """Raise UsageError unless only our items were added."""
    import yaml

    try:
        old, new = (list(yaml.safe_load_all(text)) for text in (before, after))
    except yaml.YAMLError as error:
        raise UsageError(f"nothing can be added to the manifest: {str(error).splitlines()[0]}; {_BY_HAND}") from None
    for role in choose_source(after, name).trainers:
        spec = role.template["spec"]
        if [each["name"] for each in spec["initContainers"]].count("preflight") != 1:
            raise UsageError(
                "the pods already have an init container `preflight`, or nothing can be added to the manifest; "
                f"{_BY_HAND}"
            )
    if _strip_ours(new) != _strip_ours(old):
        raise UsageError(f"adding to the manifest would change another part of it; {_BY_HAND}")


def _strip_ours(value: Any) -> Any:
    """Return plain data without our items, and without lists that contain nothing else."""
    if isinstance(value, dict):
        found = {key: _strip_ours(item) for key, item in value.items()}
        return {k: v for k, v in found.items() if not (k in ("initContainers", "volumes") and v == [])}
    if isinstance(value, list):
        ours = ("preflight", _VOLUME)
        return [_strip_ours(item) for item in value if not (isinstance(item, dict) and item.get("name") in ours)]
    return value


def _comment(*lines: str) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _to_yaml(value: Any) -> str:
    """Return YAML with hidden secrets, because a check does not need them."""
    return to_yaml(redact_tree(value), width=110)


def read_files(root: Path, paths: Sequence[str]) -> dict[str, str]:
    """Return the content of the job's files by path. Raises UsageError for a file that is not text."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            found[path] = regular_file.read_text(root / path, MAX_BYTES)
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be stored in a ConfigMap: {error}") from None
    return found


# Turns the properties of a node in a saved recording into requirements for other nodes.


def profile_of(text: str) -> tuple[Claim, ...] | None:
    """Return the requirements in a recording, `FILE` or `FILE:NODE`; None if it names no file. Raises UsageError."""
    file, colon, node = text, "", ""
    if not Path(file).is_file():
        file, colon, node = text.rpartition(":")
        if not colon or not Path(file).is_file():
            if "/" in text or text.endswith((".json", ".gz")):
                raise UsageError(f"--golden {text}: no such file")
            return None
    recording = _load(Path(file))
    record = _node(recording, file, node)
    facts = Facts(recording.facts, recording.events)
    values: dict[str, str] = {}
    readers, _ = registry.property_readers()
    for read in readers:
        values.update(read(record, facts))
    if "gpus" not in values:
        raise UsageError(
            f"--golden {file}: the recording does not contain how many GPUs {record.node.name} has; create one with "
            "`preflight nodes --save FILE` on a node whose GPU driver responds"
        )
    place = Span(file, 1, 1, 1, 1, "")
    return tuple(
        requirement_claim(Requirement(name, "==", value), place) for name, value in values.items() if name in PROPERTIES
    )


def _load(path: Path) -> Recording:
    from preflight.model.recording_io import MAX_BYTES, load

    try:
        return load(regular_file.read(path, MAX_BYTES))
    except OSError as error:
        raise UsageError(f"--golden {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"--golden {path}: not a readable recording: {error}; `preflight nodes --save FILE` writes one"
        ) from None


def _node(recording: Recording, file: str, name: str) -> NodeRecord:
    answered = {record.node.name: record for record in recording.nodes if not record.problem}
    if name in answered:
        return answered[name]
    listed = ", ".join(sorted(answered)[:8]) or "none"
    if name:
        raise UsageError(
            f"--golden {file}:{name}: the recording has no facts from a node of this name, only from {listed}"
        )
    if len(answered) != 1:
        raise UsageError(f"--golden {file}: the recording has {len(answered)} nodes ({listed}); use {file}:NODE")
    return next(iter(answered.values()))
