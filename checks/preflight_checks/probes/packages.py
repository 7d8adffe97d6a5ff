"""The packages that are installed where the ranks will run, read without importing them.

Importing torch takes seconds and may start a GPU; the metadata of the distribution and one small file contain the same.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.util
import json
import os
import re
import sys
from dataclasses import dataclass, field
from importlib import machinery
from typing import Any

from preflight._util.redaction import scrub
from preflight.agent.cheap import cheap
from preflight.agent.process import read_text
from preflight_checks.probes import built
from preflight_checks.probes import built as distributions
from preflight_checks.probes.built import first_of, parse_metadata_dir_name

#: Distributions whose version must agree between ranks, by the name they are reported under.
DISTRIBUTIONS = {
    "torch": ("torch",),
    "paddlepaddle": ("paddlepaddle-gpu", "paddlepaddle"),
    "deepspeed": ("deepspeed",),
    "accelerate": ("accelerate",),
    "horovod": ("horovod",),
    "ray": ("ray",),
    "nccl": ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11"),
}


@dataclass(frozen=True)
class Framework:
    """A framework's record of its own build; `cuda` is empty for a build without CUDA, `hip` for one without ROCm."""

    version: str = ""
    cuda: str = ""
    commit: str = ""
    hip: str = ""


@dataclass(frozen=True)
class Packages:
    """The interpreter of the ranks and the distributions that it finds."""

    python: str
    executable: str
    versions: dict[str, str] = field(default_factory=dict)
    torch: Framework | None = None
    paddle: Framework | None = None


@cheap("packages")
def packages(params: dict[str, Any]) -> Packages:
    """Return versions of the frameworks in this interpreter. Run it in the job context."""
    versions: dict[str, str] = {}
    installed: dict[str, str] = distributions.versions()
    for name, candidates in DISTRIBUTIONS.items():
        version = first_of(candidates, installed)
        if version:
            versions[name] = version
    return Packages(sys.version.split()[0], sys.executable or "", versions, _framework("torch"), _framework("paddle"))


def _framework(name: str) -> Framework | None:
    """Return the content of the framework's version file; None if it is not installed, or has no such file."""
    folder = built.package(name)
    info = built.version_info(name, folder) if folder else {}
    if not info:
        return None
    return Framework(info.get("version", ""), info.get("cuda", ""), info.get("commit", ""), info.get("hip", ""))


#: The number of names that are looked for.
MAX_NAMES = 200


@dataclass(frozen=True)
class Importable:
    """The names that the import system finds, and, for other names, the installed distribution that claims to provide
    them.

    `undecided`: by name, why the import system could not decide.
    """

    executable: str
    found: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    undecided: dict[str, str] = field(default_factory=dict)


@cheap("packages")
def importable(params: dict[str, Any]) -> Importable:
    """Look for packages `params["names"]`, also next to the scripts `params["scripts"]`. Run it in the job context."""
    beside = [os.path.dirname(os.path.abspath(str(script))) for script in params.get("scripts", [])]
    names: list[str] = []
    missing: dict[str, str] = {}
    undecided: dict[str, str] = {}
    for number, name in enumerate(str(name) for name in params.get("names", [])):
        if number >= MAX_NAMES:
            undecided[name] = f"only {MAX_NAMES} names are looked up"
            continue
        try:
            if _is_found(name, beside):
                names.append(name)
            else:
                missing[name] = ""
        except Exception as error:  # a finder of the job's own, or a damaged package
            undecided[name] = f"{type(error).__name__}: {error}"
    if missing:
        provided = _providers()
        missing = {name: provided.get(name, "") for name in missing}
    return Importable(sys.executable or "", names, missing, [entry for entry in sys.path if entry][:50], undecided)


def _is_found(name: str, extra_paths: list[str]) -> bool:
    """Return whether the import system finds `name`. Raises what its finders raise."""
    if importlib.util.find_spec(name) is not None:
        return True
    return machinery.PathFinder.find_spec(name, [os.getcwd(), *extra_paths]) is not None


def _providers() -> dict[str, str]:
    """Return the distribution that its metadata names as the provider of each top-level package."""
    from importlib import metadata  # Takes longer to import than most probes run.

    listing = getattr(metadata, "packages_distributions", None)
    try:
        return {name: names[0] for name, names in listing().items()} if listing is not None else {}
    except Exception:  # broken metadata of another package
        return {}


# Every distribution that the ranks' interpreter finds, and what kind of interpreter it is; nothing is imported.
# Names and versions are taken from the names of the metadata folders on sys.path: reading every METADATA file of a
# large environment takes a second, and on a network file system many.


#: The number of distributions that are listed; no environment of a job has more.
MAX_PACKAGES = 4000


@dataclass(frozen=True)
class Source:
    """The origin of a distribution that was not installed from an index: folder or address, and commit."""

    place: str
    commit: str = ""


@dataclass(frozen=True)
class Installed:
    """The interpreter and its distributions, by normalized name.

    `kind` is `venv`, `conda` or `system`. `twice` are distributions with metadata of two versions in one folder, left
    by an interrupted upgrade. `unread` are folders of sys.path that could not be listed. `digest` covers all names and
    versions, even if `distributions` contains only requested ones.
    """

    python: str
    executable: str
    resolved: str
    prefix: str
    kind: str
    machine: str
    abi: str
    distributions: dict[str, str] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)
    twice: dict[str, list[str]] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)
    digest: str = ""


@cheap("packages")
def installed(params: dict[str, Any]) -> Installed:
    """Return the distributions in the job context; with `params["only"]`, others are only in the digest."""
    version_by_name: dict[str, str] = {}
    twice: dict[str, list[str]] = {}
    sources: dict[str, Source] = {}
    unread: list[str] = []
    for folder in dict.fromkeys(os.path.abspath(entry or ".") for entry in sys.path):
        if not os.path.isdir(folder):
            continue
        try:
            names = sorted(os.listdir(folder))
        except OSError as error:
            unread.append(f"{folder}: {error.strerror or error}")
            continue
        here: dict[str, str] = {}
        for entry in names:
            named = parse_metadata_dir_name(entry)
            if named is None:
                continue
            name, version = named
            if name in here and here[name] != version:
                twice[name] = sorted({*twice.get(name, []), here[name], version})
            here[name] = version
            # As in the import system, the first folder of sys.path counts.
            if name not in version_by_name and len(version_by_name) < MAX_PACKAGES:
                version_by_name[name] = version
                source = _source(os.path.join(folder, entry))
                if source is not None:
                    sources[name] = source
    whole = "".join("{}=={}\n".format(*item) for item in sorted(version_by_name.items()))
    only = [str(pattern) for pattern in params.get("only", [])]
    selected = {
        n: v for n, v in version_by_name.items() if not only or any(fnmatch.fnmatchcase(n, pattern) for pattern in only)
    }
    return Installed(
        sys.version.split()[0],
        sys.executable or "",
        os.path.realpath(sys.executable or ""),
        sys.prefix,
        _kind(),
        os.uname().machine,
        machinery.EXTENSION_SUFFIXES[0][1 : -len(".so")],
        selected,
        sources,
        twice,
        unread,
        hashlib.sha256(whole.encode("utf-8", "replace")).hexdigest()[:16],
    )


def _kind() -> str:
    if os.path.isdir(os.path.join(sys.prefix, "conda-meta")):
        return "conda"
    return "venv" if sys.prefix != sys.base_prefix else "system"


def _source(folder: str) -> Source | None:
    """Parse direct_url.json (PEP 610); return None for a distribution from an index."""
    try:
        document = json.loads(read_text(os.path.join(folder, "direct_url.json")))
    except ValueError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get("url"), str):
        return None
    place = scrub(document["url"])
    vcs, folder_info = document.get("vcs_info"), document.get("dir_info")
    if isinstance(vcs, dict):
        return Source(place, str(vcs.get("commit_id") or ""))
    if isinstance(folder_info, dict) and folder_info.get("editable"):
        path = place[len("file://") :] if place.startswith("file://") else place
        return Source(path, commit_of(path))
    return None


def commit_of(folder: str) -> str:
    """Return the commit checked out in `folder` or above it, read from .git; empty if there is no checkout."""
    here = os.path.abspath(folder)
    while True:
        git = os.path.join(here, ".git")
        if os.path.exists(git):
            return _head(git)
        above = os.path.dirname(here)
        if above == here:
            return ""
        here = above


def _head(git: str) -> str:
    if os.path.isfile(git):
        pointer = read_text(git)
        if not pointer.startswith("gitdir:"):
            return ""
        git = os.path.join(os.path.dirname(git), pointer[len("gitdir:") :].strip())
    head = read_text(os.path.join(git, "HEAD"))
    if not head.startswith("ref:"):
        return head if re.match(r"^[0-9a-f]{40,64}$", head) else ""
    reference = head[len("ref:") :].strip()
    common = read_text(os.path.join(git, "commondir"))
    for place in (git, os.path.join(git, common)) if common else (git,):
        commit = read_text(os.path.join(place, reference))
        if not commit:
            packed = read_text(os.path.join(place, "packed-refs"), 4 << 20)
            lines = [line.split(" ") for line in packed.splitlines() if line.endswith(" " + reference)]
            commit = lines[0][0] if lines else ""
        if re.match(r"^[0-9a-f]{40,64}$", commit):
            return commit
    return ""
