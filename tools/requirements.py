"""Write data/requirements.json again: which releases of other packages each release of a package requires.

    python -m tools.requirements

For each package the newest release of every minor version is read from the metadata of its wheel on the package index.
Requirements on packages that are not in the list are left out, and so are those of other systems and of extras, but
for the extra that names torch itself.
"""

from __future__ import annotations

import io
import json
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from email.parser import HeaderParser
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

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
    *("nvidia-cudnn-cu13", "colossalai", "sagemaker"),
)
#: The system and the interpreter whose requirements are written down.
_SYSTEM = {
    "python_version": "3.11",
    "python_full_version": "3.11.9",
    "sys_platform": "linux",
    "platform_system": "Linux",
    "platform_machine": "x86_64",
    "os_name": "posix",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
#: Minor versions of a package that are read, newest first.
_MINORS = 60
_DEADLINE_S = 60
#: Bytes at the end of a wheel, which hold its list of files and often its metadata.
_END = 200_000
_INDEX = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"


class Wheel(NamedTuple):
    """A wheel on the index."""

    name: str
    version: Version
    address: str


def wheels(name: str) -> list[Wheel]:
    """One wheel of the newest release of each minor version, newest first; none for a package without wheels."""
    try:
        listed = json.loads(_read(f"{_INDEX}/{name}/", _JSON))["files"]
    except urllib.error.HTTPError:
        return []
    newest: dict[tuple[int, ...], Wheel] = {}
    for file in listed:
        if not file["filename"].endswith(".whl") or file.get("yanked"):
            continue
        try:
            version = parse_wheel_filename(file["filename"])[1]
        except InvalidWheelFilename:
            continue
        minor = version.release[:2]
        if version.is_prerelease or (minor in newest and version < newest[minor].version):
            continue
        # Of several wheels of a release, that of this system says what it needs.
        if minor not in newest or version > newest[minor].version or "manylinux" in file["filename"]:
            newest[minor] = Wheel(name, version, file["url"])
    return sorted(newest.values(), key=lambda wheel: wheel.version, reverse=True)[:_MINORS]


def requirements(wheel: Wheel) -> dict[str, Any]:
    """The release, the interpreters and the listed packages that it requires."""
    with zipfile.ZipFile(_Remote(wheel.address)) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode(errors="replace")
    head = HeaderParser().parsestr(text.partition("\n\n")[0])
    found = {"version": str(wheel.version), "python": head.get("Requires-Python", "")}
    needs = {name: spec for line in head.get_all("Requires-Dist", []) for name, spec in _needed(line)}
    return found | ({"requires": dict(sorted(needs.items()))} if needs else {})


class _Remote(io.RawIOBase):
    """A file on a server, of which only the parts that are read are fetched, and its end at once."""

    def __init__(self, address: str) -> None:
        self._address = address
        asked = urllib.request.Request(address, headers={"Range": f"bytes=-{_END}"})
        with urllib.request.urlopen(asked, timeout=_DEADLINE_S) as answer:
            self._end: bytes = answer.read()
            self._size = int(answer.headers["Content-Range"].rpartition("/")[2])
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        last = self._size if size < 0 else min(self._at + size, self._size)
        first, self._at = self._at, last
        begin = self._size - len(self._end)
        if first >= begin:
            return self._end[first - begin : last - begin]
        asked = urllib.request.Request(self._address, headers={"Range": f"bytes={first}-{last - 1}"})
        with urllib.request.urlopen(asked, timeout=_DEADLINE_S) as answer:
            content: bytes = answer.read()
            return content


def _needed(line: str) -> Iterator[tuple[str, str]]:
    try:
        requirement = Requirement(line)
    except InvalidRequirement:
        return
    name = canonicalize_name(requirement.name)
    if name not in PACKAGES or not str(requirement.specifier):
        return
    marker = requirement.marker
    extras = ("", "torch") if name == "torch" else ("",)
    if marker is None or any(marker.evaluate({**_SYSTEM, "extra": extra}) for extra in extras):
        yield name, str(requirement.specifier)


def _read(address: str, accept: str) -> bytes:
    asked = urllib.request.Request(address, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(asked, timeout=_DEADLINE_S) as answer:
        content: bytes = answer.read()
        return content


def main() -> None:
    """Read every package and write the table."""
    with ThreadPoolExecutor(16) as pool:
        found = [wheel for listed in pool.map(wheels, sorted(PACKAGES)) for wheel in listed]
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
