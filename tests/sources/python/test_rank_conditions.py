"""For which ranks a condition is true, and which ranks run a piece of a script."""

from __future__ import annotations

import ast
import textwrap

import pytest

from preflight.model.job import WHOLE_JOB
from preflight.sources.base import SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python.module import Module
from preflight.sources.python.rank_conditions import RankSet, ranks_of, ranks_where_true


def _module(text: str) -> Module:
    text = textwrap.dedent(text)
    return Module(SourceFile("train.py", text, "", len(text)), ast.parse(text), MemoryTree({}), WHOLE_JOB)


def _ranks(test: str, before: str = "") -> RankSet:
    module = _module(f"import os\n{textwrap.dedent(before)}\nif {test}:\n    act()\n")
    return ranks_where_true(module, module.nodes(ast.If)[-1].test)


@pytest.mark.parametrize(
    ("test", "who"),
    [
        ("rank == 0", RankSet.FIRST),
        ("0 == rank", RankSet.FIRST),
        ("not rank", RankSet.FIRST),
        ("dist.get_rank() == 0", RankSet.FIRST),
        ("int(os.environ['RANK']) == 0", RankSet.FIRST),
        ("args.rank in (-1, 0)", RankSet.FIRST),
        ("rank <= 0", RankSet.FIRST),
        ("rank < 1", RankSet.FIRST),
        ("is_main_process()", RankSet.FIRST),
        ("self.is_global_zero", RankSet.FIRST),
        ("hvd.rank() == 0 and epoch > 3", RankSet.FIRST),
        ("not args.distributed or rank == 0", RankSet.FIRST),
        ("local_rank == 0 and node_rank == 0", RankSet.FIRST),
        ("rank != 0", RankSet.OTHERS),
        ("rank > 0", RankSet.OTHERS),
        ("rank", RankSet.OTHERS),
        ("not is_main_process()", RankSet.OTHERS),
        ("local_rank == 0", RankSet.LOCAL_FIRST),
        ("args.local_rank in [-1, 0]", RankSet.LOCAL_FIRST),
        ("accelerator.is_local_main_process", RankSet.LOCAL_FIRST),
        ("rank % torch.cuda.device_count() == 0", RankSet.LOCAL_FIRST),
        ("args.rank % ngpus_per_node == 0", RankSet.LOCAL_FIRST),
        ("local_rank != 0", RankSet.LOCAL_OTHERS),
        ("rank == 1", RankSet.SOME),
        ("rank % 2 == 0", RankSet.SOME),
        ("mpu.get_data_parallel_rank() == 0", RankSet.UNDECIDED),
        ("self.gpu_id == 0", RankSet.UNDECIDED),
        ("should_save()", RankSet.UNDECIDED),
        ("epoch % 5 == 0", RankSet.ALL),
        ("os.environ.get('RANK')", RankSet.ALL),
        ("not os.environ.get('LOCAL_RANK')", RankSet.ALL),
        ("args.fp16", RankSet.ALL),
        ("lora_rank > 0", RankSet.UNDECIDED),
    ],
)
def test_conditions(test: str, who: RankSet) -> None:
    assert _ranks(test) is who


@pytest.mark.parametrize(
    ("before", "test", "who"),
    [
        ("local_rank = dist.get_rank()", "local_rank == 0", RankSet.FIRST),
        ("args.local_rank = int(os.environ['RANK'])", "args.local_rank == 0", RankSet.FIRST),
        ("rank = int(os.environ['LOCAL_RANK'])", "rank == 0", RankSet.LOCAL_FIRST),
        ("master = rank == 0", "master", RankSet.FIRST),
        ("def is_main():\n    return local_rank == 0", "is_main()", RankSet.LOCAL_FIRST),
    ],
)
def test_names_mean_what_they_were_assigned(before: str, test: str, who: RankSet) -> None:
    assert _ranks(test, f"import os\n{before}") is who


@pytest.mark.parametrize(
    ("text", "who"),
    [
        ("save()", RankSet.ALL),
        ("if rank == 0:\n    save()", RankSet.FIRST),
        ("if rank != 0:\n    pass\nelse:\n    save()", RankSet.FIRST),
        ("def f():\n    if rank != 0:\n        return\n    save()\nf()", RankSet.FIRST),
        ("def f():\n    if local_rank > 0:\n        return\n    save()\nf()", RankSet.LOCAL_FIRST),
        ("def f():\n    save()\nif rank == 0:\n    f()", RankSet.FIRST),
        ("def f():\n    save()\ndef g():\n    f()\nif rank == 0:\n    g()", RankSet.FIRST),
        ("def f():\n    save()\nf()", RankSet.ALL),
        ("def f(rank):\n    save()\nmp.spawn(f, nprocs=8)", RankSet.ALL),
        ("def f():\n    save()", RankSet.UNDECIDED),
        ("def f():\n    f()\n    save()", RankSet.UNDECIDED),
        ("@rank_zero_only\ndef f():\n    save()\nf()", RankSet.FIRST),
        ("rank == 0 and save()", RankSet.FIRST),
        ("save() if rank == 0 else None", RankSet.FIRST),
    ],
)
def test_ranks_that_run_a_call(text: str, who: RankSet) -> None:
    module = _module(text)
    (call,) = (call for call in module.calls if module.called(call) == "save")
    assert ranks_of(module).guard_of(call).who is who
