"""Write data/wheels.toml again: which CUDA, cuDNN and NCCL the wheels on the package index were built for.

    python -m tools.wheels

The versions are those that a wheel pins in its own metadata, which pip fetches without the wheel. Architectures are in
no metadata; they are maintained by hand in data/architectures.toml.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

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
_DEADLINE_S = 120
_HEAD = """\
# Which CUDA, cuDNN and NCCL the wheels on the package index were built for, by framework and minor version. Written by
# `python -m tools.wheels` from the pins in each wheel's metadata. An installed wheel states its own versions, which
# take precedence; this is for builds that pin nothing. Wheels with another local version (`+cu118`) are others.

"""


@dataclass(frozen=True)
class Row:
    """One wheel; a pin is empty if the wheel pins nothing."""

    framework: str
    version: str
    pins: dict[str, str]


def metadata(distribution: str, version: str) -> dict[str, Any] | None:
    """The metadata of the wheel that pip would install here; None if the index has none for this interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        words = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-deps", "--ignore-installed", "--quiet"]
        words += ["--only-binary", ":all:", "--disable-pip-version-check", "--report", str(report)]
        done = subprocess.run(
            [*words, f"{distribution}=={version}"], capture_output=True, text=True, timeout=_DEADLINE_S, check=False
        )
        if done.returncode != 0:
            print(f"{distribution} {version}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
            return None
        found: dict[str, Any] = json.loads(report.read_text())["install"][0]["metadata"]
        return found


def pins(requires: list[str]) -> dict[str, str]:
    """The versions that a wheel's requirements pin, by the keys of a row."""
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
    """The document."""
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
            found = metadata(distribution, version)
            pinned = pins(found.get("requires_dist") or []) if found is not None else {}
            if pinned:
                rows.append(Row(distribution.replace("paddlepaddle-gpu", "paddle"), version, pinned))
    TARGET.write_text(text(rows), encoding="utf-8")
    print(f"{TARGET}: {len(rows)} wheels")


if __name__ == "__main__":
    main()
