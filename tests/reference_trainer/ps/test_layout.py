"""A worker sends the same bytes for its gradients, whether they are copied or sent in place."""

from __future__ import annotations

import pytest

from reference_trainer.ps.client import Server
from reference_trainer.ps.layout import ParameterLayout
from reference_trainer.ps.partition import Parameter, Table, make

pytestmark = pytest.mark.thorough


class _Told:
    def __init__(self, servers: int, slice_bytes: int) -> None:
        dense = [Parameter("large", (300, 100)), Parameter("bias", (7,)), Parameter("tiny", (3, 5))]
        dense += [Parameter(f"more{number}", (5000 + number,)) for number in range(3)]
        self.plan = make(dense, [Table("rows", 10, 4)], servers, slice_bytes=slice_bytes)


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("slice_bytes", [4 << 20, 40_000])
def test_lent_data_equals_copied_data(servers: int, slice_bytes: int) -> None:
    import torch

    told = _Told(servers, slice_bytes)
    values = [torch.randn(p.shape) for p in told.plan.dense]
    # As a matrix product may leave it: its numbers are not in the order of sending.
    values[0] = torch.randn(100, 300).t()

    def sent(lends: bool) -> list[list[bytes]]:
        ends = [Server(None, told, number) for number in range(servers)]  # type: ignore[arg-type]
        layout = ParameterLayout(told.plan)
        kept = layout.lend(values, ends) if lends else layout.scatter(values, ends)
        found = [[b"".join(map(bytes, parts)) for parts in end.outgoing] for end in ends]
        del kept
        return found

    assert sent(True) == sent(False)
    assert sum(len(shard) for end in sent(True) for shard in end) == sum(4 * p.elements for p in told.plan.dense)


def test_copies_work_after_lending() -> None:
    import torch

    told = _Told(1, 4 << 20)
    end, layout = Server(None, told, 0), ParameterLayout(told.plan)  # type: ignore[arg-type]
    kept = layout.lend([torch.ones(p.shape) for p in told.plan.dense], [end])
    layout.scatter([torch.zeros(p.shape) for p in told.plan.dense], [end])
    assert kept and not any(b"".join(map(bytes, end.outgoing[0])))
