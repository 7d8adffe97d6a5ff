"""Preflight's own rules: each judges a job from its claims alone.

A rule is a function under `@rule` in any module of this package, and its cases in `tests/rules/cases`. `PACK` finds the
modules by their file names and imports none of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from preflight.plugins.pack import Pack


def _modules(folder: str, package: str) -> Iterator[str]:
    """The names of the modules in a package and its subpackages, sorted. Only folders are read."""
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.isidentifier() and os.path.exists(os.path.join(entry.path, "__init__.py")):  # noqa: PTH110, PTH118
                yield from _modules(entry.path, f"{package}.{entry.name}")
            elif entry.name.endswith(".py") and not entry.name.startswith("_"):
                yield f"{package}.{entry.name.removesuffix('.py')}"


#: The title of each area of rules, for `passed in the files: 12 rules on ...`. An area without one goes by its letters.
_AREAS = {
    "ACC": "Accelerate",
    "ARG": "launcher options",
    "BAT": "batch sizes",
    "CFG": "framework settings",
    "CKP": "checkpoints",
    "CLT": "cluster_train",
    "CST": "cost",
    "CTR": "containers",
    "DAT": "data loading",
    "DSP": "DeepSpeed",
    "ENV": "environment variables",
    "FIL": "input files",
    "FLG": "Paddle flags",
    "FLT": "fault tolerance",
    "FLU": "Fluid programs",
    "FSD": "FSDP",
    "GPU": "GPUs",
    "HFT": "Hugging Face's trainer",
    "HST": "hostfiles",
    "HVD": "Horovod",
    "HYD": "Hydra",
    "IFN": "interface filters",
    "KUB": "Kubernetes",
    "LCH": "launch lines",
    "LIT": "Lightning",
    "LOG": "logs",
    "LRK": "local ranks",
    "MEM": "memory",
    "MPI": "MPI",
    "PAR": "parallel sizes",
    "PDL": "Paddle launches",
    "PGR": "process groups",
    "PIP": "pipelines",
    "PPS": "parameter servers",
    "PRC": "precision",
    "PRT": "ports",
    "RAY": "Ray",
    "RDV": "rendezvous",
    "REC": "PaddleRec",
    "RLT": "reinforcement learning",
    "SGD": "synchronous and asynchronous SGD",
    "SLU": "Slurm",
    "TFP": "TensorFlow clusters",
    "TMO": "timeouts",
    "TRN": "training loops",
    "TRX": "transmission",
    "VLK": "pinned versions",
    "WLD": "world size",
}

PACK = Pack(items=tuple(_modules(os.path.dirname(__file__), __name__)), areas=_AREAS)  # noqa: PTH120
