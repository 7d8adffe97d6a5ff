"""Manifests that let preflight look at the pods of a job: an init container for them, or a Job beside it.

The check runs in the job's own image with the job's devices, volumes and variables, before the ranks start, and judges
its own pod. What it has to know of the job's files travels in a ConfigMap.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from preflight import __version__
from preflight.errors import UsageError
from preflight.executors.kubernetes_pods import PodRole, PodSource, chosen_source, container_of, own_job
from preflight.lazy.dataclasses import dataclass
from preflight.sources.structured import Kind, Member, Node

#: A ConfigMap holds a MiB (kubernetes/api, core/v1 ConfigMap); its own text needs some of that.
LARGEST_BYTES = 900 * 1024
#: How long a Job of checks may take, pulling the image included.
JOB_S = 1800
_VOLUME = "preflight-job"
_PLACE = "/preflight"
#: What of the ranks' container the look needs to see what they will see.
_SHARED = ("env", "envFrom", "resources", "volumeMounts", "volumeDevices", "securityContext", "workingDir")


@dataclass(frozen=True, slots=True)
class Wish:
    """What kind of look is wanted.

    Args:
        name: which object of the manifest; needed only where it holds several jobs.
        container: whose image, devices and variables; empty for the one with devices.
        image: an image with preflight in it, instead of the job's own.
        install: install preflight with pip at the start, into the container alone.
        lenient: only tell what is found, and let the job start.
        options: further options of `preflight check`.
    """

    name: str = ""
    container: str = ""
    image: str = ""
    install: bool = False
    lenient: bool = False
    options: tuple[str, ...] = ()


def pieces(text: str, files: Mapping[str, str], wish: Wish) -> str:
    """The parts to add to the pods, as YAML with comments that say where each goes."""
    source = chosen_source(text, wish.name)
    parts = [
        _dumped(_config_map(source, files)),
        _comment("Into the pod's spec, beside `containers` (an existing list goes on below the new item):"),
        _dumped({"volumes": [_volume(source, files)]}),
    ]
    for role, container in _init_containers(source, files, wish):
        of = f" of {role.name}" if role.name else ""
        parts += [_comment(f"Into the spec of the pods{of}:"), _dumped({"initContainers": [container]})]
    first = _comment(
        f"For {source.kind} {source.name}: apply this ConfigMap first, then add what follows to the manifest.",
        "`preflight manifest --as patch` prints the whole manifest with it.",
    )
    return "".join((first, parts[0], "---\n", *parts[1:]))


def patched(text: str, files: Mapping[str, str], wish: Wish) -> str:
    """The manifest with the init container in it, otherwise to the letter as it was, and the ConfigMap behind it.

    Raises:
        UsageError: it is written in a manner that nothing can be put into without writing it anew.
    """
    source = chosen_source(text, wish.name)
    insertions: dict[int, str] = {}
    for role, container in _init_containers(source, files, wish):
        spec = role.place.at("spec")
        if spec is None or not _is_block(text, spec):
            raise UsageError(f"the pods of {role.name or source.name} are not written in block style; {_BY_HAND}")
        for key, item in (("initContainers", container), ("volumes", _volume(source, files))):
            place, added = _insertion(text, spec, key, item)
            # Roles may share one template by an anchor; it is one place then.
            insertions[place] = insertions.get(place, "") + ("" if added in insertions.get(place, "") else added)
    result = text
    for place in sorted(insertions, reverse=True):
        result = result[:place] + insertions[place] + result[place:]
    _same_but_for_ours(text, result, wish.name)
    end = "" if result.endswith("\n") else "\n"
    return result + end + "---\n" + _dumped(_config_map(source, files))


_BY_HAND = "print what to add with `--as init`, and add it by hand"


def beside(text: str, files: Mapping[str, str], wish: Wish) -> str:
    """A Job whose pods are like the job's, one on each of as many nodes, and look at these."""
    source = chosen_source(text, wish.name)
    role = max(source.trainers, key=lambda each: each.count or 0)
    count = sum(each.count or 0 for each in source.trainers)
    if not count:
        raise UsageError("the manifest does not say how many pods the job has; a Job of as many checks needs it")
    name = _name(source)
    job = own_job(
        source,
        role,
        name=name,
        namespace=source.namespace or "default",
        count=count,
        lifetime_s=JOB_S,
        container=wish.container,
        command=_command(files, wish),
    )
    if not source.namespace:
        del job["metadata"]["namespace"]
    spec = job["spec"]
    # One node that fails must not end the look at the others.
    del spec["backoffLimit"], spec["ttlSecondsAfterFinished"]
    spec["backoffLimitPerIndex"] = 0
    pod = spec["template"]["spec"]
    pod["volumes"] = [*(pod.get("volumes") or []), _volume(source, files)]
    (container,) = pod["containers"]
    container["volumeMounts"] = [*(container.get("volumeMounts") or []), _mount()]
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    if wish.image:
        container["image"] = wish.image
    where = f" -n {source.namespace}" if source.namespace else ""
    first = _comment(
        f"Looks at as many nodes as {source.kind} {source.name} takes, with its image, devices and volumes:",
        f"  kubectl apply{where} -f FILE && kubectl wait{where} --for=condition=complete --timeout=600s job/{name}",
        f"  kubectl logs{where} -l preflight/run={name} --prefix --tail=-1",
        "A pod that fails has an error-level finding; `kubectl delete` takes Job and ConfigMap away again.",
    )
    return first + _dumped(_config_map(source, files)) + "---\n" + _dumped(job)


def _name(source: PodSource) -> str:
    """A name for what belongs to this job, within the 63 letters that labels and pods leave."""
    plain = re.sub(r"[^a-z0-9-]+", "-", source.name.lower()).strip("-") or "job"
    return f"preflight-{plain}"[:50].rstrip("-")


def _config_map(source: PodSource, files: Mapping[str, str]) -> dict[str, Any]:
    size = sum(len(path) + len(content.encode()) for path, content in files.items())
    if size > LARGEST_BYTES:
        raise UsageError(f"the job's files have {size} bytes, and a ConfigMap holds {LARGEST_BYTES}; name fewer files")
    metadata = {"name": _name(source), **({"namespace": source.namespace} if source.namespace else {})}
    data = {_key(index): content for index, content in enumerate(files.values())}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _key(index: int) -> str:
    return f"file-{index}"


def _volume(source: PodSource, files: Mapping[str, str]) -> dict[str, Any]:
    items = [{"key": _key(index), "path": path} for index, path in enumerate(files)]
    return {"name": _VOLUME, "configMap": {"name": _name(source), "items": items}}


def _mount() -> dict[str, Any]:
    return {"name": _VOLUME, "mountPath": _PLACE, "readOnly": True}


def _init_containers(
    source: PodSource, files: Mapping[str, str], wish: Wish
) -> Iterator[tuple[PodRole, dict[str, Any]]]:
    for role in source.trainers:
        chosen = container_of(role.template, wish.container)
        made: dict[str, Any] = {
            "name": "preflight",
            "image": wish.image or chosen.get("image") or "",
            "command": _command(files, wish),
            **{key: chosen[key] for key in _SHARED if key in chosen},
        }
        made["volumeMounts"] = [*(chosen.get("volumeMounts") or []), _mount()]
        made["terminationMessagePolicy"] = "FallbackToLogsOnError"
        yield role, made


def _command(files: Mapping[str, str], wish: Wish) -> list[str]:
    """A shell line that looks at the pod it runs in; its exit code is preflight's, so that the pod shows it."""
    paths = [f"{_PLACE}/{path}" for path in files]
    check = [
        *("python3", "-m", "preflight", "check", *paths, "--root", _PLACE),
        *("--on", "local", "--hosts", "local", "--trust-job", "--until", "node"),
        # It looks at one pod of several, and names of the others resolve only once these are ready.
        *("--ignore", "NOD002,NAM", "--allow-incomplete", *wish.options),
    ]
    line = " ".join(shlex.quote(word) for word in check)
    line += ' --python "$(command -v python3)"'
    if wish.install:
        into = "/tmp/preflight"
        install = f"python3 -m pip install --quiet --disable-pip-version-check --target {into}"
        line = f"{install} 'preflight-train=={__version__}' && PYTHONPATH={into} {line}"
    if wish.lenient:
        line += " || true"
    return ["/bin/sh", "-c", line]


def _insertion(text: str, spec: Node, key: str, item: Mapping[str, Any]) -> tuple[int, str]:
    """Where an item of the list `key` of a pod goes, and the text that has to go there."""
    containers = spec.member("containers")
    assert containers is not None
    member = spec.member(key)
    if member is None:
        indent = _column(text, containers.key_start)
        return _line_start(text, containers.key_start), _indented(_dumped({key: [item]}), indent)
    if member.node.kind is not Kind.ARRAY or not member.node.items or not _is_list(text, member):
        raise UsageError(f"`{key}` is not written as a block; {_BY_HAND}")
    first = _line_start(text, member.node.items[0].start)
    dash = text.index("-", first) - first
    return first, _indented(_dumped([item]), dash)


def _is_block(text: str, node: Node) -> bool:
    return node.kind is Kind.OBJECT and text[node.start] not in "{*&" and node.at("containers") is not None


def _is_list(text: str, member: Member) -> bool:
    """Whether each item of a list stands below its key, behind a hyphen."""
    start = _line_start(text, member.node.items[0].start)
    return start > member.key_end and text[start : member.node.items[0].start].strip() == "-"


def _line_start(text: str, place: int) -> int:
    return text.rfind("\n", 0, place) + 1


def _column(text: str, place: int) -> int:
    start = _line_start(text, place)
    if text[start:place].strip():
        raise UsageError(f"something stands before `{text[place : place + 10]}` on its line; {_BY_HAND}")
    return place - start


def _indented(block: str, columns: int) -> str:
    return "".join(" " * columns + line if line.strip() else line for line in block.splitlines(keepends=True))


def _same_but_for_ours(before: str, after: str, name: str) -> None:
    """Raise UsageError unless nothing but our items was added."""
    import yaml

    try:
        old, new = (list(yaml.safe_load_all(text)) for text in (before, after))
    except yaml.YAMLError as error:
        raise UsageError(f"the manifest cannot be added to: {str(error).splitlines()[0]}; {_BY_HAND}") from None
    for role in chosen_source(after, name).trainers:
        spec = role.template["spec"]
        if [each["name"] for each in spec["initContainers"]].count("preflight") != 1:
            raise UsageError(f"the pods have an init container `preflight` already, or cannot be added to; {_BY_HAND}")
    if _without_ours(new) != _without_ours(old):
        raise UsageError(f"adding to the manifest would change something else in it; {_BY_HAND}")


def _without_ours(value: Any) -> Any:
    """Plain data without our items, and without lists that only they fill."""
    if isinstance(value, dict):
        found = {key: _without_ours(item) for key, item in value.items()}
        return {k: v for k, v in found.items() if not (k in ("initContainers", "volumes") and v == [])}
    if isinstance(value, list):
        ours = ("preflight", _VOLUME)
        return [_without_ours(item) for item in value if not (isinstance(item, dict) and item.get("name") in ours)]
    return value


def _comment(*lines: str) -> str:
    return "".join(f"# {line}\n" for line in lines)


def _dumped(value: Any) -> str:
    """YAML in block style, with texts of several lines as they are."""
    import yaml

    class Dumper(yaml.SafeDumper):
        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: yaml.SafeDumper, data: str) -> Any:
        style = "|" if "\n" in data else None
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, text)
    return str(
        yaml.dump(value, Dumper=Dumper, sort_keys=False, default_flow_style=False, width=110, allow_unicode=True)
    )


def read_files(root: Path, paths: Sequence[str]) -> dict[str, str]:
    """The text of the job's files by their path below the root. Raises UsageError for one that is no text."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            found[path] = (root / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path} cannot be put into a ConfigMap: {error}") from None
    return found
