"""For which ranks a condition is true, and which ranks run a piece of a script."""

from __future__ import annotations

import ast
import textwrap

import pytest

from preflight.job import WHOLE_JOB
from preflight.sources.base import SourceFile
from preflight.sources.python.module import Module
from preflight.sources.python.ranks import Who, audience
from preflight.sources.python.standing import ranks_of
from preflight.sources.tree import MemoryTree


def _module(text: str) -> Module:
    text = textwrap.dedent(text)
    return Module(SourceFile("train.py", text, "", len(text)), ast.parse(text), MemoryTree({}), WHOLE_JOB)


def _who(test: str, before: str = "") -> Who:
    module = _module(f"import os\n{textwrap.dedent(before)}\nif {test}:\n    act()\n")
    return audience(module, module.nodes(ast.If)[-1].test)


@pytest.mark.parametrize(
    ("test", "who"),
    [
        ("rank == 0", Who.FIRST),
        ("0 == rank", Who.FIRST),
        ("not rank", Who.FIRST),
        ("dist.get_rank() == 0", Who.FIRST),
        ("int(os.environ['RANK']) == 0", Who.FIRST),
        ("args.rank in (-1, 0)", Who.FIRST),
        ("rank <= 0", Who.FIRST),
        ("rank < 1", Who.FIRST),
        ("is_main_process()", Who.FIRST),
        ("self.is_global_zero", Who.FIRST),
        ("hvd.rank() == 0 and epoch > 3", Who.FIRST),
        ("not args.distributed or rank == 0", Who.FIRST),
        ("local_rank == 0 and node_rank == 0", Who.FIRST),
        ("rank != 0", Who.OTHERS),
        ("rank > 0", Who.OTHERS),
        ("rank", Who.OTHERS),
        ("not is_main_process()", Who.OTHERS),
        ("local_rank == 0", Who.LOCAL_FIRST),
        ("args.local_rank in [-1, 0]", Who.LOCAL_FIRST),
        ("accelerator.is_local_main_process", Who.LOCAL_FIRST),
        ("rank % torch.cuda.device_count() == 0", Who.LOCAL_FIRST),
        ("args.rank % ngpus_per_node == 0", Who.LOCAL_FIRST),
        ("local_rank != 0", Who.LOCAL_OTHERS),
        ("rank == 1", Who.SOME),
        ("rank % 2 == 0", Who.SOME),
        ("mpu.get_data_parallel_rank() == 0", Who.UNTOLD),
        ("self.gpu_id == 0", Who.UNTOLD),
        ("should_save()", Who.UNTOLD),
        ("epoch % 5 == 0", Who.ALL),
        ("os.environ.get('RANK')", Who.ALL),
        ("not os.environ.get('LOCAL_RANK')", Who.ALL),
        ("args.fp16", Who.ALL),
        ("lora_rank > 0", Who.UNTOLD),
    ],
)
def test_conditions(test: str, who: Who) -> None:
    assert _who(test) is who


@pytest.mark.parametrize(
    ("before", "test", "who"),
    [
        ("local_rank = dist.get_rank()", "local_rank == 0", Who.FIRST),
        ("args.local_rank = int(os.environ['RANK'])", "args.local_rank == 0", Who.FIRST),
        ("rank = int(os.environ['LOCAL_RANK'])", "rank == 0", Who.LOCAL_FIRST),
        ("master = rank == 0", "master", Who.FIRST),
        ("def is_main():\n    return local_rank == 0", "is_main()", Who.LOCAL_FIRST),
    ],
)
def test_names_mean_what_they_were_assigned(before: str, test: str, who: Who) -> None:
    assert _who(test, f"import os\n{before}") is who


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("save()", Who.ALL),
        ("if rank == 0:\n    save()", Who.FIRST),
        ("if rank != 0:\n    pass\nelse:\n    save()", Who.FIRST),
        ("def f():\n    if rank != 0:\n        return\n    save()\nf()", Who.FIRST),
        ("def f():\n    if local_rank > 0:\n        return\n    save()\nf()", Who.LOCAL_FIRST),
        ("def f():\n    save()\nif rank == 0:\n    f()", Who.FIRST),
        ("def f():\n    save()\ndef g():\n    f()\nif rank == 0:\n    g()", Who.FIRST),
        ("def f():\n    save()\nf()", Who.ALL),
        ("def f(rank):\n    save()\nmp.spawn(f, nprocs=8)", Who.ALL),
        ("def f():\n    save()", Who.UNTOLD),
        ("def f():\n    f()\n    save()", Who.UNTOLD),
        ("@rank_zero_only\ndef f():\n    save()\nf()", Who.FIRST),
        ("rank == 0 and save()", Who.FIRST),
        ("save() if rank == 0 else None", Who.FIRST),
    ],
)
def test_who_runs_a_call(text: str, who: Who) -> None:
    module = _module(text)
    (call,) = (call for call in module.calls if module.called(call) == "save")
    assert ranks_of(module).standing(call).who is who
