from __future__ import annotations

import pytest

from preflight.model.job import Known, Plain
from preflight.sources.base import SourceFile
from preflight.sources.configs.line_files import DotenvSource
from preflight.sources.configs.packages import LockFileSource
from preflight.sources.formats.tree import MemoryTree

UV = """version = 1

[[package]]
name = "torch"
version = "2.7.1+cu126"

[[package]]
name = "numpy"
version = "2.0"
"""
PIXI = (
    "version: 6\npackages:\n"
    "- conda: https://conda.anaconda.org/conda-forge/linux-64/pytorch-2.6.0-cuda126_py312_0.conda\n  sha256: ab\n"
    "- pypi: https://files.example/transformers-4.50.0-py3-none-any.whl\n  name: transformers\n  version: 4.50.0\n"
)
PIPENV = '{"_meta": {}, "default": {"torch": {"version": "==2.4.0"}, "requests": {"version": "==2.0"}}}'
PIXI_TOML = '[dependencies]\npytorch = ">=2.1,<3"\n\n[pypi-dependencies]\ndeepspeed = { version = "==0.16.4" }\n'


def packages(path: str, text: str) -> list[Plain]:
    """The packages that a file pins."""
    tree = MemoryTree({path: text})
    file = tree.read(path)
    assert isinstance(file, SourceFile) and LockFileSource().recognises(file)
    claims = LockFileSource().read(file, tree).claims
    return [claim.value.value for claim in claims if claim.quantity == "package" and isinstance(claim.value, Known)]


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        ("uv.lock", UV, ["torch==2.7.1+cu126", "numpy==2.0"]),
        ("sub/poetry.lock", UV.replace("+cu126", ""), ["torch==2.7.1", "numpy==2.0"]),
        ("pixi.lock", PIXI, ["torch==2.6.0", "transformers==4.50.0"]),
        ("Pipfile.lock", PIPENV, ["torch==2.4.0", "requests==2.0"]),
        ("pixi.toml", PIXI_TOML, ["torch>=2.1,<3", "deepspeed==0.16.4"]),
    ],
)
def test_a_lock_file_pins_versions(path: str, text: str, expected: list[Plain]) -> None:
    assert packages(path, text) == expected


def test_a_package_in_several_versions_has_no_claim() -> None:
    assert packages("uv.lock", UV + '\n[[package]]\nname = "torch"\nversion = "2.5.0"\n') == ["numpy==2.0"]


@pytest.mark.parametrize("path", ["uv.lock", "poetry.lock", "pixi.lock", "Pipfile.lock", "pixi.toml"])
@pytest.mark.parametrize("text", ["", "[", "{", "version: 7\n", "name = 3\n"])
def test_damaged_lock_files_pin_nothing(path: str, text: str) -> None:
    assert packages(path, text) == []


def test_the_environment_overrides_nccl_settings() -> None:
    tree = MemoryTree({"conf/nccl.conf": "# tuned\nNCCL_DEBUG=WARN\nNCCL_IB_HCA='mlx5'\n"})
    file = tree.read("conf/nccl.conf")
    assert isinstance(file, SourceFile) and DotenvSource().recognises(file)
    claims = {claim.quantity: claim for claim in DotenvSource().read(file, tree).claims}
    # NCCL does not remove quotation marks.
    assert claims["env.NCCL_IB_HCA"].value == Known("'mlx5'")
    assert claims["env.NCCL_DEBUG"].strength.name == "CONFIG"
