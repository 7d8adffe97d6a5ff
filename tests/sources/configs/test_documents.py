"""Launches in the Markdown documents of a project."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.model.job import Job, Known, Unresolved
from preflight.plugins import registry
from preflight.sources.discovery.assemble import assemble

PROGRAM = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"


def jobs_of(folder: Path, program: str = "train.py", **files: str) -> tuple[Job, ...]:
    (folder / program).parent.mkdir(exist_ok=True)
    (folder / program).write_text(PROGRAM)
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    return assemble(folder, [folder], sources=registry.sources())


def launches(jobs: tuple[Job, ...]) -> list[tuple[str, str, int]]:
    return [(launch.launcher, launch.program, launch.span.line) for job in jobs for launch in job.launches]


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ("# Run\n\n```bash\nexport A=1\ntorchrun --nproc_per_node=4 \\\n  train.py\n```\n", 5),
        (
            "1. Train:\n\n   ```\n   $ torchrun --nproc_per_node=4 train.py\n   torchrun: output of train.py\n   ```\n",
            4,
        ),
        ("Train:\n\n    torchrun --nproc_per_node=4 train.py\n", 3),
        ("Run `torchrun --nproc_per_node=4 train.py` on each node.\n", 1),
        ("```\ntorchrun --nproc_per_node=4 train.py", 2),
        ("```\ntorchrun --nproc_per_node=4 train.py\n", 2),
    ],
)
def test_code_that_launches_is_read(tmp_path: Path, document: str, line: int) -> None:
    jobs = jobs_of(tmp_path, README_md=document)
    assert launches(jobs) == [("torchrun", "train.py", line)]
    job = next(job for job in jobs if job.launches)
    assert job.value("processes_per_node", job.launches[0].scope) == Known(4)


@pytest.mark.parametrize(
    "document",
    [
        "Run torchrun --nproc_per_node=4 train.py\n",
        "```python\nos.system('torchrun --nproc_per_node=4 train.py')\n```\n",
        "```bash\ntorchrun --nproc_per_node=4 other.py\n```\n",
        "```bash\npython train.py\n```\n",
        "```bash\n# torchrun --nproc_per_node=4 train.py\n```\n",
    ],
    ids=["prose", "python", "another project", "one process", "comment"],
)
def test_all_else_is_not_read(tmp_path: Path, document: str) -> None:
    assert launches(jobs_of(tmp_path, README_md=document)) == []


@pytest.mark.parametrize("words", ["--nnodes=<nodes>", "--nnodes=NODES", "--nnodes {n}", "--nnodes=your_number"])
def test_placeholders_are_unknown(tmp_path: Path, words: str) -> None:
    jobs = jobs_of(tmp_path, README_md=f"```\ntorchrun {words} --nproc_per_node=2 train.py\n```\n")
    job = next(job for job in jobs if job.launches)
    assert isinstance(job.value("nodes", job.launches[0].scope), Unresolved)


def test_a_script_that_launches_the_program_counts_instead(tmp_path: Path) -> None:
    document = "```bash\ntorchrun --nproc_per_node=8 train.py\n```\n"
    jobs = jobs_of(tmp_path, README_md=document, run_sh="torchrun --nproc_per_node=2 train.py\n")
    assert launches(jobs) == [("torchrun", "train.py", 1)]


def test_lines_before_a_launch_prepare_it(tmp_path: Path) -> None:
    document = (
        "```bash\npip install -r requirements.txt\nexport N=4\ncd src\ntorchrun --nproc_per_node=$N train.py\n```\n"
    )
    jobs = jobs_of(tmp_path, "src/train.py", README_md=document)
    job = next(job for job in jobs if job.launches)
    assert job.launches[0].program == "src/train.py"
    assert job.value("processes_per_node", job.launches[0].scope) == Known(4)
