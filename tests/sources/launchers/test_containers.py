"""Resources that `docker run` gives a container."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, Unresolved
from preflight.sources.base import SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.launchers.installs import mebibytes
from preflight.sources.shell.shell_source import ShellSource


def _claims(line: str) -> dict[str, Claim]:
    file = SourceFile("run.sh", line + "\n", "", len(line))
    found = ShellSource().read(file, MemoryTree({"run.sh": line})).claims
    names = ("container_", "shm_mib", "pod_", "host_path", "gpus_per_node")
    return {claim.quantity: claim for claim in found if claim.quantity.startswith(names)}


def test_a_container_around_a_launch_has_its_scope() -> None:
    claims = _claims(
        "docker run --gpus '\"device=0,1\"' --shm-size=8g --net=host img:1 torchrun --nproc_per_node=2 t.py"
    )
    assert claims["container_run"].value == Known("img:1")
    assert claims["container_run"].scope.launch == "run.sh:1"
    assert claims["gpus_per_node"].value == Known(2)
    assert claims["shm_mib"].value == Known(8192)
    assert claims["container_network"].value == Known("host")
    assert claims["container_command"].value == Known("torchrun --nproc_per_node=2 t.py")


def test_a_launch_in_an_inner_shell_is_found() -> None:
    claims = _claims("docker run --gpus all --ipc host img bash -c 'cd /w && torchrun --nproc_per_node=2 t.py'")
    assert claims["container_gpus"].value == Known("all")
    assert isinstance(claims["shm_mib"].value, Unresolved)
    assert "gpus_per_node" not in claims


@pytest.mark.parametrize(
    "given",
    [
        "--gpus all",
        "--runtime=nvidia",
        "--runtime habana",
        "--device /dev/nvidia0",
        "--device=/dev/kfd --device=/dev/dri",
        "--device nvidia.com/gpu=all",
        "--privileged",
        "-e A=b $MORE",
    ],
)
def test_options_that_provide_gpus(given: str) -> None:
    assert "container_gpus" in _claims(f"docker run -it {given} img python train.py")


def test_nvidia_docker_and_apptainer() -> None:
    assert _claims("nvidia-docker run img python train.py")["container_gpus"].value == Known("nvidia-docker")
    assert "container_gpus" in _claims("apptainer exec --nv i.sif python train.py")
    assert "container_gpus" in _claims("export APPTAINER_NV=1\napptainer exec i.sif python train.py")
    assert "container_gpus" not in _claims("singularity exec i.sif python train.py")


def test_a_missing_option_claims_nothing() -> None:
    claims = _claims("docker run --rm img python train.py")
    assert set(claims) == {"container_run", "container_command"}


@pytest.mark.parametrize("line", ["docker exec -it box python train.py", "echo docker run img", "docker build ."])
def test_commands_that_start_no_container(line: str) -> None:
    assert _claims(line) == {}


@pytest.mark.parametrize(("written", "size"), [("8g", 8192), ("512m", 512), ("1GB", 1024), (str(64 * 1024**2), 64)])
def test_sizes(written: str, size: int) -> None:
    assert mebibytes(written) == size


def test_invalid_sizes() -> None:
    with pytest.raises(ValueError, match="not a size"):
        mebibytes("much")


def test_a_container_that_ssh_starts_is_one_wrapper() -> None:
    line = "ssh n0 docker run --gpus all img bash -c 'torchrun --nproc_per_node=2 t.py'\n"
    (launch,) = ShellSource().read(SourceFile("run.sh", line, "", len(line)), MemoryTree({"run.sh": line})).launches
    assert launch.wrappers == ("ssh", "docker")
