"""Where the value of a claim was assigned, when its word only names a variable."""

from __future__ import annotations

import pytest

from tests.sources.launchers.reading_lines import only, read

_LINE = "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d"


@pytest.mark.parametrize(
    ("script", "quantity", "line"),
    [
        ("N=8\ntorchrun --nnodes=$N train.py", "nodes", 1),
        ("N=8\ntorchrun --nnodes ${N} train.py", "nodes", 1),
        ('N=8\ntorchrun --nnodes="${N:-2}" train.py', "nodes", 1),
        ("N=8\nM=$N\nexport L=${M}\ntorchrun --nnodes=$L train.py", "nodes", 1),
        ("N=4\nN=8\ntorchrun --nnodes=$N train.py", "nodes", 2),
        (f"HOST=n1\n{_LINE} --rdzv_endpoint=$HOST:29500 train.py", "master_addr", 1),
        (f"HOST=n1\n{_LINE} --rdzv_endpoint=$HOST:29500 train.py", "rendezvous_endpoint", 1),
        (f"PORT=29500\n{_LINE} --rdzv_endpoint=n1:$PORT train.py", "master_port", 1),
        ("H=n1\nexport MASTER_ADDR=$H RANK=0\npython train.py", "env.MASTER_ADDR", 1),
        ("N=2\nsrun -N $N bash -c 'torchrun --nnodes=2 train.py'", "nodes", 1),
    ],
)
def test_the_assignment_is_the_origin(script: str, quantity: str, line: int) -> None:
    origins = {c.origin.line if c.origin else None for c in read(script).claims if c.quantity == quantity}
    assert line in origins


@pytest.mark.parametrize(
    ("script", "quantity"),
    [
        ("torchrun --nnodes=8 train.py", "nodes"),
        ("torchrun --nnodes=${N:-8} train.py", "nodes"),
        ("torchrun --nnodes=$N train.py", "nodes"),
        ("A=4\nB=2\ntorchrun --nnodes=$((A * B)) train.py", "nodes"),
        ("A=1\nB=6\ntorchrun --nnodes=$A$B train.py", "nodes"),
        ('if [ -n "$X" ]; then N=2; else N=4; fi\ntorchrun --nnodes=$N train.py', "nodes"),
        (f"HOST=n1\n{_LINE} --rdzv_endpoint=$HOST:29500 train.py", "master_port"),
    ],
)
def test_a_value_without_a_single_assignment_has_no_origin(script: str, quantity: str) -> None:
    assert only(read(script), quantity).origin is None


def test_a_secret_in_the_line_of_the_assignment_is_hidden() -> None:
    claim = only(read("N=8; WANDB_API_KEY=0123456789abcdef0123\ntorchrun --nnodes=$N train.py"), "nodes")
    assert claim.origin is not None
    assert "0123456789abcdef" not in claim.origin.snippet
