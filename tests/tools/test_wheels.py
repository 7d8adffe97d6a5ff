"""The script that writes the table of wheels, without querying the index."""

from __future__ import annotations

from preflight._util import toml
from preflight_checks.comparison import table
from tools.wheels import VERSIONS, Row, pins, text


def test_pins_of_requirements() -> None:
    requires = [
        "filelock",
        'nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux" and platform_machine == "x86_64"',
        "nvidia-cudnn-cu12 (==9.10.2.21) ; platform_system == 'Linux'",
        'nvidia-nccl-cu12==2.23.4; extra == "and-cuda"',
        "nvidia-cuda-nvrtc-cu12==12.8.93",
    ]
    assert pins(requires) == {"cuda": "12.8", "cudnn": "9.10.2.21", "nccl": "2.23.4"}
    assert pins(["nvidia-cuda-runtime==13.0.96", "nvidia-cudnn-cu13>=9"]) == {"cuda": "13.0"}


def test_the_written_table_can_be_read() -> None:
    document = toml.loads(text([Row("torch", "2.8.0", {"cuda": "12.8", "nccl": "2.27.3"})]))
    assert document["wheel"] == [
        {"framework": "torch", "version": "2.8", "looked_at": "2.8.0", "cuda": "12.8", "nccl": "2.27.3"}
    ]


def test_the_committed_table_follows_the_script() -> None:
    listed = {version for versions in VERSIONS.values() for version in versions}
    assert {row["looked_at"] for row in table("wheels")["wheel"]} <= listed
