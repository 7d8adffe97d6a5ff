"""Files that list packages: pip, conda, pyproject; odd and hostile lines."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Plain
from preflight.sources.base import SourceFile
from preflight.sources.configs.line_files import DotenvSource
from preflight.sources.configs.packages import LockFileSource, Package, RequirementsSource, conda_package_of, package_of
from preflight.sources.formats.tree import MemoryTree, decode
from tests.pip_options import EXTRA_INDEX_URL, FIND_LINKS


def package_claims(path: str, text: str, **others: str) -> list[tuple[str, object, int, int]]:
    tree = MemoryTree({path: text, **others})
    file = tree.read(path)
    assert isinstance(file, SourceFile) and RequirementsSource().recognises(file)
    claims = RequirementsSource().read(file, tree).claims
    return [(c.quantity, getattr(c.value, "value", None), c.span.line, c.span.column) for c in claims]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch", Package("torch", "")),
        ("Torch[opt-einsum] >= 2.0, <2.5", Package("torch", ">=2.0,<2.5")),
        ("torch==2.1.0+cu118", Package("torch", "==2.1.0+cu118", "11.8")),
        ("paddlepaddle_gpu==2.6.1", Package("paddlepaddle", "==2.6.1")),
        (
            "https://x.org/whl/torch-2.1.0%2Bcu121-cp310-cp310-linux_x86_64.whl",
            Package("torch", "==2.1.0+cu121", "12.1"),
        ),
        ("torch @ https://x.org/torch-2.1.0-cp310-cp310-linux_x86_64.whl", Package("torch", "==2.1.0")),
        ("torch @ git+https://x.org/torch", None),
        ("torch_geometric==2", Package("torch-geometric", "==2")),
        ("a line of prose", None),
        ("torch==2.1 --hash=sha256:aa", Package("torch", "==2.1")),
        ("", None),
    ],
)
def test_requirements_of_pip(text: str, expected: Package | None) -> None:
    assert package_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("pytorch=2.1", Package("torch", "==2.1.*")),
        ("conda-forge::pytorch>=2", Package("torch", ">=2")),
        ("pytorch=2.1.0=py3.10_cuda11.8_0", Package("torch", "==2.1.0.*")),
        ("pytorch-cuda=12.1", Package("cuda", "==12.1.*", "12.1")),
        ("numpy", Package("numpy", "")),
        ("python=3.10", Package("python", "==3.10.*")),
    ],
)
def test_packages_of_conda(text: str, expected: Package | None) -> None:
    assert conda_package_of(text) == expected


def test_a_requirement_file() -> None:
    text = (
        f"# for training\n-r base.txt\n{EXTRA_INDEX_URL} https://wheels.example/whl/cu118\n\n"
        "  torch==2.1.0 # gpu\nray; python_version < '3.9'\npaddlepaddle==3.1.1\n"
    )
    assert package_claims("requirements-train.txt", text) == [
        ("wheel_cuda", "11.8", 3, 1),
        ("package", "torch==2.1.0", 5, 3),
        ("package", "paddlepaddle==3.1.1", 7, 1),
        ("paddle_version", "3.1.1", 7, 1),
    ]


@pytest.mark.parametrize("option", ["-i", "-f", "--index", "--extra-index", FIND_LINKS])
def test_the_address_of_wheels_names_their_cuda(option: str) -> None:
    text = f"{option} https://wheels.example/whl/cu121\n"
    assert package_claims("requirements.txt", text) == [("wheel_cuda", "12.1", 1, 1)]


def test_an_environment_of_conda() -> None:
    text = (
        "name: x\nchannels:\n  - pytorch\ndependencies:\n  - python=3.10\n  - pytorch=2.1\n"
        "  - pip\n  - pip:\n    - deepspeed==0.14.0\n  - pytorch-cuda=11.8\n"
    )
    assert package_claims("environment.yml", text) == [
        ("package", "python==3.10.*", 5, 5),
        ("package", "torch==2.1.*", 6, 5),
        ("package", "pip", 7, 5),
        ("package", "deepspeed==0.14.0", 9, 7),
        ("wheel_cuda", "11.8", 10, 5),
    ]


def test_a_project() -> None:
    text = '[project]\ndependencies = [\n  "torch>=2.1",\n  "numpy",\n]\n[project.scripts]\nx = ["deepspeed"]\n'
    assert package_claims("pyproject.toml", text) == [("package", "torch>=2.1", 3, 4), ("package", "numpy", 4, 4)]
    poetry = '[tool.poetry.dependencies]\npython = "^3.10"\ntorch = "^2.1"\nray = {version = "2.9.0", extras = ["x"]}\n'
    assert package_claims("pyproject.toml", poetry) == [
        ("package", "python>=3.10", 2, 1),
        ("package", "torch>=2.1", 3, 1),
        ("package", "ray==2.9.0", 4, 1),
    ]


def test_included_files_become_references() -> None:
    tree = MemoryTree({"a/requirements.txt": "-r base.txt\n-c ../constraints.txt\n", "a/base.txt": "torch\n"})
    file = tree.read("a/requirements.txt")
    assert isinstance(file, SourceFile)
    references = RequirementsSource().read(file, tree).references
    assert [(r.target, r.role) for r in references] == [
        ("a/base.txt", "requirements"),
        ("constraints.txt", "requirements"),
    ]


@pytest.mark.parametrize("name", ["requirements.txt", "environment.yml", "pyproject.toml"])
@pytest.mark.parametrize(
    "text",
    ["", "\x01\x02", "torch==" + "1" * 5000, "torch" + "[" * 5000, "- " * 3000, "dependencies:\n" + "  - pip:\n" * 500],
)
def test_hostile_lines_do_not_raise(name: str, text: str) -> None:
    file = decode(name, ("[project]\ndependencies = [\n" + text if name == "pyproject.toml" else text).encode())
    assert isinstance(file, SourceFile)
    assert RequirementsSource().read(file, MemoryTree({})).notes == ()


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
