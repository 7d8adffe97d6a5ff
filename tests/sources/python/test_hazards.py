"""Claims of scripts about loops, guards, GPUs, checkpoints and shares, at their exact locations."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from preflight.model.job import Claim, Known, Unresolved
from preflight.model.job.value import is_known, without_place
from preflight.sources.base import SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python import PythonSource

HEAD = "import torch\nimport torch.distributed as dist\nfrom torch.nn.parallel import DistributedDataParallel as DDP\n"


def _claims(text: str) -> tuple[Claim, ...]:
    file = SourceFile("train.py", text, "", len(text))
    reading = PythonSource().read(file, MemoryTree({}), role="script")
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading.claims


def _of(text: str, quantity: str) -> list[Claim]:
    return [claim for claim in _claims(HEAD + textwrap.dedent(text)) if claim.quantity == quantity]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("torch.cuda.set_device(ids[rank])", Unresolved("sys.argv[1]: known only at run time")),
        ("torch.cuda.set_device(int(shown.split(',')[rank]))", Unresolved("sys.argv[1]: known only at run time")),
    ],
)
def test_an_index_from_the_mask(text: str, value: object) -> None:
    before = "import os, sys\nshown = sys.argv[1]\nids = shown.split(',')\nos.environ['CUDA_VISIBLE_DEVICES'] = shown\n"
    (claim,) = _of(before + text + "\n", "device_of_masked_list")
    assert without_place(claim.value) == value


@pytest.mark.parametrize(
    "text",
    [
        "torch.cuda.set_device(local_rank)",
        "torch.cuda.set_device(dist.get_rank() % 8)",
        "torch.cuda.set_device(int(os.environ['LOCAL_RANK']))",
        "net.to('cuda:0')",
    ],
)
def test_valid_indices_are_not_claimed_as_faults(text: str) -> None:
    found = {claim.quantity for claim in _claims(f"import os\n{HEAD}{text}\n")}
    assert not found & {"device_of_masked_list", "device_of_global_rank", "device_index"}


def test_a_saver_in_a_function_is_judged_by_its_callers() -> None:
    text = """\
    def keep(state):
        torch.save(state, "state.pt")

    def main():
        dist.init_process_group("nccl")
        if int(os.environ["LOCAL_RANK"]) == 0:
            keep(state)

    main()
    """
    (claim,) = _of("import os\n" + textwrap.dedent(text), "checkpoint_written")
    assert claim.value == Known("the first rank of every node")
    assert claim.because[0].spelling == 'int(os.environ["LOCAL_RANK"]) == 0'


@pytest.mark.parametrize(
    "text", ["", "\n", "#!/usr/bin/env python\n", "print 'two'\n", "{{ template }}\n", "if rank ==\n"]
)
def test_unusual_scripts_state_no_claims(text: str) -> None:
    assert {claim.quantity for claim in _claims(text)} <= {"script"}


_PIECES = st.sampled_from(
    (
        "for x in y:",
        "    loss.backward()",
        "    if loss.item() < b:",
        "        break",
        "if rank == 0:",
        "    dist.barrier()",
        "else:",
        "try:",
        "    torch.save(model, path)",
        "except Exception:",
        "    pass",
        "finally:",
        "    dist.destroy_process_group()",
        "def shard(rank, size):",
        "    per = ceil(n / size)",
        "    return min(rank * per, n)",
        "os.environ['CUDA_VISIBLE_DEVICES'] = gpu",
        "torch.cuda.set_device(gpu)",
        "while loss > 1:",
        "    return",
        "os.environ['TF_CONFIG'] = json.dumps({'cluster': {**x}, 'task': [1]})",
        "pg = placement_group([*a, {'CPU': 1, **b}])",
        "ray.get([pg.ready()])",
    )
)


@given(st.lists(_PIECES, max_size=14))
def test_random_combinations_do_not_raise(pieces: list[str]) -> None:
    _claims("import os, json, ray\n" + HEAD + "\n".join(pieces) + "\n")
