"""Write data/wheels.toml again: which CUDA, cuDNN and NCCL the wheels on the package index were built for.

    python -m tools.wheels

The versions are those that a wheel pins in its own metadata, which is fetched without the rest. Architectures are in
no metadata; they are maintained by hand in data/architectures.toml.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from packaging.version import Version

from tools.package_index import Wheel, metadata, wheels

TARGET = Path(__file__).parent.parent / "checks" / "preflight_checks" / "data" / "wheels.toml"
#: One release of each minor version.
VERSIONS = {
    "torch": (
        *("1.13.1", "2.0.1", "2.1.2", "2.2.2", "2.3.1", "2.4.1", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.1"),
        *("2.10.0", "2.11.0", "2.12.0"),
    ),
    "tensorflow": ("2.14.1", "2.15.1", "2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0"),
    "paddlepaddle-gpu": ("2.6.2",),
}
#: The keys of a row, and the distribution whose version each contains.
_PINS = {"cuda": "cuda-runtime", "cudnn": "cudnn", "nccl": "nccl"}
_HEAD = """\
# Which CUDA, cuDNN and NCCL the wheels on the package index were built for, by framework and minor version. Written by
# `python -m tools.wheels` from the pins in each wheel's metadata. An installed wheel states its own versions, which
# take precedence; this is for builds that pin nothing. Wheels with another local version (`+cu118`) are others.

"""


@dataclass(frozen=True)
class Row:
    """A wheel; a pin is empty if the wheel pins nothing."""

    framework: str
    version: str
    pins: dict[str, str]


def wheel_of(distribution: str, version: str) -> Wheel | None:
    """Return a wheel of a release for Linux on x86_64; None if the index has none."""
    found = [wheel for wheel in wheels(distribution) if wheel.version == Version(version)]
    return next((w for w in found if any("linux" in tag and tag.endswith("x86_64") for tag in w.platforms)), None)


def pins(requires: list[str]) -> dict[str, str]:
    """Return the versions that a wheel's requirements pin, by the keys of a row."""
    found: dict[str, str] = {}
    for line in requires:
        for key, name in _PINS.items():
            match = re.match(rf"nvidia-{name}(?:-cu\d+)? *\(?== *([0-9.]+)", line)
            if match:
                found.setdefault(key, match.group(1))
    if "cuda" in found:
        found["cuda"] = ".".join(found["cuda"].split(".")[:2])
    return found


def text(rows: list[Row]) -> str:
    lines = [_HEAD, "schema = 1\n", 'source = "the metadata of the wheels on the Python package index"\n']
    lines.append(f'date = "{date.today().isoformat()}"\n')
    for row in rows:
        minor = ".".join(row.version.split(".")[:2])
        lines.append(f'\n[[wheel]]\nframework = "{row.framework}"\nversion = "{minor}"\nlooked_at = "{row.version}"\n')
        lines += [f'{key} = "{value}"\n' for key, value in sorted(row.pins.items())]
    return "".join(lines)


def main() -> None:
    """Query the index for each version and write the file; versions that pin nothing are left out."""
    rows = []
    for distribution, versions in VERSIONS.items():
        for version in versions:
            wheel = wheel_of(distribution, version)
            pinned = pins(metadata(wheel).get_all("Requires-Dist", [])) if wheel is not None else {}
            if pinned:
                rows.append(Row(distribution.replace("paddlepaddle-gpu", "paddle"), version, pinned))
    TARGET.write_text(text(rows), encoding="utf-8")
    print(f"{TARGET}: {len(rows)} wheels")


if __name__ == "__main__":
    main()
