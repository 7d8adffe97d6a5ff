"""The packages that are installed where the ranks will run, read without importing any of them.

Importing torch takes seconds and may start a GPU; the metadata of the distribution and one small file contain the same.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass, field
from importlib import machinery
from typing import Any

from preflight.agent.cheap import cheap
from preflight_checks.probes import built
from preflight_checks.probes import built as distributions
from preflight_checks.probes.built import first_of

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
    """The interpreter of the ranks and the distributions it finds."""

    python: str
    executable: str
    versions: dict[str, str] = field(default_factory=dict)
    torch: Framework | None = None
    paddle: Framework | None = None


@cheap("packages")
def packages(params: dict[str, Any]) -> Packages:
    """Versions of the frameworks in this interpreter. Run it in the job context."""
    versions: dict[str, str] = {}
    installed: dict[str, str] = distributions.versions()
    for name, candidates in DISTRIBUTIONS.items():
        version = first_of(candidates, installed)
        if version:
            versions[name] = version
    return Packages(sys.version.split()[0], sys.executable or "", versions, _framework("torch"), _framework("paddle"))


def _framework(name: str) -> Framework | None:
    """The content of the framework's version file; None if it is not installed, or has no such file."""
    folder = built.package(name)
    info = built.version_info(name, folder) if folder else {}
    if not info:
        return None
    return Framework(info.get("version", ""), info.get("cuda", ""), info.get("commit", ""), info.get("hip", ""))


#: The number of names that are looked for.
MAX_NAMES = 200


@dataclass(frozen=True)
class Importable:
    """The names that were found, and for each that was not, the installed distribution that claims to provide it.

    `undecided` has the reason for each name about which the import system could not tell.
    """

    executable: str
    found: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    path: list[str] = field(default_factory=list)
    undecided: dict[str, str] = field(default_factory=dict)


@cheap("packages")
def importable(params: dict[str, Any]) -> Importable:
    """Look for the top-level packages `params["names"]`, also beside the scripts `params["scripts"]`. Run it in the job
    context.
    """
    beside = [os.path.dirname(os.path.abspath(str(script))) for script in params.get("scripts", [])]
    found: list[str] = []
    missing: dict[str, str] = {}
    undecided: dict[str, str] = {}
    for number, name in enumerate(str(name) for name in params.get("names", [])):
        if number >= MAX_NAMES:
            undecided[name] = f"only {MAX_NAMES} names are looked for"
            continue
        try:
            if _is_found(name, beside):
                found.append(name)
            else:
                missing[name] = ""
        except Exception as error:  # a finder of the job's own, or a damaged package
            undecided[name] = f"{type(error).__name__}: {error}"
    if missing:
        provided = _provided()
        missing = {name: provided.get(name, "") for name in missing}
    return Importable(sys.executable or "", found, missing, [entry for entry in sys.path if entry][:50], undecided)


def _is_found(name: str, beside: list[str]) -> bool:
    """Whether the import system finds `name`. Raises whatever its finders raise."""
    if importlib.util.find_spec(name) is not None:
        return True
    return machinery.PathFinder.find_spec(name, [os.getcwd(), *beside]) is not None


def _provided() -> dict[str, str]:
    """The distribution that its metadata names as the provider of each top-level package."""
    from importlib import metadata  # Takes longer to import than most probes run.

    listing = getattr(metadata, "packages_distributions", None)
    try:
        return {name: names[0] for name, names in listing().items()} if listing is not None else {}
    except Exception:  # broken metadata of another package
        return {}
