"""Which frameworks a script certainly imports."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.config.resolve import jobs_in


def imported(folder: Path, script: str, *files: str) -> dict[str, str]:
    """The frameworks of a job that starts this script, each with its condition; `files` are beside it, and empty."""
    (folder / "train.py").write_text(script)
    (folder / "job.sh").write_text("torchrun --nproc_per_node 2 train.py\n")
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    (job,) = jobs_in((folder / "job.sh",), root=folder)
    return {str(claim.alternatives[0]): claim.condition for claim in job.about("imported_framework")}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("import deepspeed\n", {"deepspeed"}),
        ("import os, horovod.torch as hvd\nfrom transformers import Trainer\n", {"horovod", "transformers"}),
        ("def main():\n    import deepspeed\nif __name__ == '__main__':\n    main()\n", {"deepspeed"}),
        ("with open('x') as file:\n    import accelerate\n", set()),
        # Known by no name, Python's own, and relative.
        ("import os\nimport my_library\nfrom . import torch\n", set()),
        ("try:\n    import deepspeed\nexcept ImportError:\n    deepspeed = None\n", set()),
        ("try:\n    import a\nexcept ImportError:\n    import deepspeed\n", set()),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import deepspeed\n", set()),
        ("import typing\nif typing.TYPE_CHECKING:\n    import deepspeed\n", set()),
        ("import os\nif os.environ.get('DS'):\n    import deepspeed\nelse:\n    import accelerate\n", set()),
        ("def main():\n    import deepspeed\n", set()),
        ("def main(args):\n    if args.plain:\n        return\n    import deepspeed\nmain(0)\n", set()),
        ("import sys\nif len(sys.argv) > 2:\n    sys.exit()\nimport deepspeed\n", set()),
        ("class Model:\n    def load(self):\n        import deepspeed\n", set()),
        ("for _ in ():\n    import deepspeed\n", set()),
        ("lambda: __import__('deepspeed')\n", set()),
        ("import contextlib\nwith contextlib.suppress(ImportError):\n    import deepspeed\n", set()),
    ],
)
def test_only_what_is_imported_on_every_path(script: str, expected: set[str], tmp_path: Path) -> None:
    found = imported(tmp_path, f"{script}import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    assert set(found) - {"torch"} == expected
    assert not any(found.values())


def test_a_package_of_the_tree_is_none(tmp_path: Path) -> None:
    script = "from megatron.core import x\nimport fairseq, torch\ntorch.distributed.init_process_group('nccl')\n"
    assert set(imported(tmp_path, script)) == {"torch", "fairseq", "megatron"}
    assert set(imported(tmp_path, script, "megatron/__init__.py")) == {"torch", "fairseq"}


def test_a_changed_search_path_is_a_condition(tmp_path: Path) -> None:
    script = "import sys\nsys.path.insert(0, '/opt')\nimport megatron\nimport torch.distributed as d\nd.barrier()\n"
    assert imported(tmp_path, script)["megatron"] == "after a change of sys.path"
