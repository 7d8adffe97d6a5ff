"""Write data/requirements.json again: which releases of other packages each release of a package requires.

    python -m tools.requirements

For each package the newest release of every minor version is read from the metadata of its wheel on the package index.
Requirements on packages that are not in the list are left out, and so are those of other systems and of extras. If a
requirement depends on the interpreter, the loosest one counts. The requirements of an extra named torch are listed
separately.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.package_index import Wheel, metadata, wheels

TARGET = Path(__file__).parent.parent / "rules" / "preflight_rules" / "data" / "requirements.json"
PACKAGES = (
    *("torch", "torchvision", "torchaudio", "triton", "torchao", "torchdata", "torchmetrics", "torchtitan"),
    *("torchtune", "xformers", "transformers", "tokenizers", "huggingface-hub", "safetensors", "accelerate", "peft"),
    *("trl", "datasets", "optimum", "diffusers", "sentence-transformers", "bitsandbytes", "deepspeed", "lightning"),
    *("pytorch-lightning", "lightning-fabric", "vllm", "ray", "numpy", "pandas", "pyarrow", "scipy", "protobuf"),
    *("setuptools", "tensorflow", "keras", "tensorboard", "jax", "jaxlib", "flax", "optax", "paddlepaddle"),
    *("paddlepaddle-gpu", "paddlenlp", "paddleformers", "mosaicml", "llm-foundry", "megatron-core", "nemo-toolkit"),
    *("fairscale", "axolotl", "llamafactory", "verl", "openrlhf", "ms-swift", "dgl", "torchrec", "fbgemm-gpu"),
    *("transformer-engine", "liger-kernel", "pydantic", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "nvidia-cudnn-cu12"),
    *("nvidia-cudnn-cu13", "colossalai", "sagemaker", "transformer-engine-cu12", "transformer-engine-cu13"),
    *("transformer-engine-torch",),
)
#: The system whose requirements are written down, and the minor versions of its interpreter.
_PYTHONS = range(6, 20)
_SYSTEM = {
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
#: Packages that the index has no source of, so that pip cannot build them for another Python.
_WHEELS_ONLY = frozenset(
    ("torch", "torchvision", "torchaudio", "triton", "tensorflow", "jaxlib", "ray", "paddlepaddle", "paddlepaddle-gpu")
)
#: Extras whose releases a package compares when it is imported, however they were installed.
_CHECKED_EXTRAS = {"transformer-engine": ("core_cu12", "core_cu13", "pytorch")}
#: Minor versions of a package that are read, newest first.
_MINORS = 60


def releases(name: str) -> list[Wheel]:
    """Return one wheel of the newest release of each minor version, newest first; none for a package without wheels.

    For a package such as xformers, whose releases are 0.0.30 and 0.0.31, each release counts as a minor version.
    """
    newest: dict[tuple[int, ...], Wheel] = {}
    pythons: dict[Version, list[int | None]] = {}
    for wheel in wheels(name):
        pythons.setdefault(wheel.version, []).append(wheel.newest_python)
        minor = wheel.version.release[: 3 if wheel.version.release[:2] == (0, 0) else 2]
        known = newest.get(minor)
        if wheel.version.is_prerelease or (known is not None and wheel.version < known.version):
            continue
        # Of several wheels of a release, that of this system says what it needs.
        if known is None or wheel.version > known.version or any("manylinux" in tag for tag in wheel.platforms):
            newest[minor] = wheel
    found = sorted(newest.values(), key=lambda wheel: wheel.version, reverse=True)[:_MINORS]
    # A wheel for each Python: a release has none for those that came later.
    ends = [[end for end in pythons[wheel.version] if end is not None] for wheel in found]
    whole = [len(each) == len(pythons[wheel.version]) for wheel, each in zip(found, ends, strict=True)]
    return [
        wheel._replace(newest_python=max(each) if each and is_whole and name in _WHEELS_ONLY else None)
        for wheel, each, is_whole in zip(found, ends, whole, strict=True)
    ]


def requirements(wheel: Wheel) -> dict[str, Any]:
    """Return the release, the interpreters and the listed packages that it requires."""
    head = metadata(wheel)
    python = head.get("Requires-Python", "").replace(" ", "")
    if wheel.newest_python is not None and "<" not in python:
        python = f"{python},<3.{wheel.newest_python + 1}".lstrip(",")
    found: dict[str, Any] = {"version": str(wheel.version), "python": python}
    lines = head.get_all("Requires-Dist", [])
    pythons = [minor for minor in _PYTHONS if SpecifierSet(python.replace(".*", "")).contains(f"3.{minor}.9")]
    always = _by_all(lines, ("", *_CHECKED_EXTRAS.get(wheel.name, ())), pythons)
    # Many libraries name torch in an extra alone, and check its release when they are imported.
    by_extra = {name: each for name, each in _by_all(lines, ("torch",), pythons).items() if name == "torch"}
    if always:
        found["requires"] = dict(sorted(always.items()))
    if by_extra and "torch" not in always:
        found["extra"] = by_extra
    return found


def _by_all(lines: Sequence[str], extras: Sequence[str], pythons: Sequence[int]) -> dict[str, str]:
    """Return the listed packages that a release requires under each of these interpreters, with the lowest bound."""
    each = [
        {name: needed for line in lines for extra in extras for name, needed in _needed(line, extra, minor)}
        for minor in pythons
    ]
    found = {}
    for name in set(each[0]).intersection(*each[1:]) if each else ():
        needed = [of_python[name].split(",") for of_python in each]
        lowest = {bound for one in needed for bound in one if re.fullmatch(r">=[\d.]+", bound)}
        others = {tuple(bound for bound in one if bound not in lowest) for one in needed}
        if len(others) == 1:
            bounds = (*others.pop(), *sorted(lowest, key=lambda bound: Version(bound[2:]))[:1])
            found[name] = ",".join(bounds)
    return found


def _needed(line: str, extra: str, python: int) -> Iterator[tuple[str, str]]:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return
    name = canonicalize_name(requirement.name)
    if name not in PACKAGES or not str(requirement.specifier):
        return
    interpreter = {"python_version": f"3.{python}", "python_full_version": f"3.{python}.9"}
    if requirement.marker is None or requirement.marker.evaluate({**_SYSTEM, **interpreter, "extra": extra}):
        yield name, str(requirement.specifier)


def main() -> None:
    with ThreadPoolExecutor(16) as pool:
        found = [wheel for listed in pool.map(releases, sorted(PACKAGES)) for wheel in listed]
        needed = list(pool.map(requirements, found))
    table: dict[str, list[dict[str, Any]]] = {}
    for wheel, row in zip(found, needed, strict=True):
        table.setdefault(wheel.name, []).append(row)
    lines = [
        f"  {json.dumps(name)}: [\n" + ",\n".join(f"    {json.dumps(row)}" for row in rows) + "\n  ]"
        for name, rows in table.items()
    ]
    head = f'  "date": {json.dumps(date.today().isoformat())},\n'
    TARGET.write_text("{\n" + head + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(table)} packages, {len(found)} releases")


if __name__ == "__main__":
    main()
