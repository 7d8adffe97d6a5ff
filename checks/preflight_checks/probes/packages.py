"""The packages that are installed where the ranks will run, read without importing any of them.

Importing torch takes seconds and may start a GPU; the metadata of the distribution and one small file contain the same.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any, Dict, Optional

from preflight.agent.cheap import cheap
from preflight_checks.probes import built, distributions
from preflight_checks.probes.distributions import first_of

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
    versions: Dict[str, str] = field(default_factory=dict)
    torch: Optional[Framework] = None
    paddle: Optional[Framework] = None


@cheap("packages")
def packages(params: Dict[str, Any]) -> Packages:
    """Versions of the frameworks in this interpreter. Run it in the job context."""
    versions, installed = {}, distributions.versions()  # type: Dict[str, str], Dict[str, str]
    for name, candidates in DISTRIBUTIONS.items():
        version = first_of(candidates, installed)
        if version:
            versions[name] = version
    return Packages(
        sys.version.split()[0],
        sys.executable or "",
        versions,
        _framework("torch"),
        _framework("paddle"),
    )


def _framework(name: str) -> Optional[Framework]:
    """The content of the framework's version file; None if it is not installed, or has no such file."""
    folder = built.package(name)
    info = built.version_info(name, folder) if folder else {}
    if not info:
        return None
    return Framework(info.get("version", ""), info.get("cuda", ""), info.get("commit", ""), info.get("hip", ""))
