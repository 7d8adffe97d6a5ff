"""The same training in one process: the gradients of all workers' shards, summed in the order of their indices."""

from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence

from reference_trainer.ps import clocks, tasks
from reference_trainer.ps.exact import deduplicated
from reference_trainer.ps.settings import Settings
from reference_trainer.ps.stepping import gradients_of
from reference_trainer.training import MOST_COMPARED_RANKS, MOST_COMPARED_STEPS


def difference(
    told: Settings, final: Sequence[Any], rows: Sequence[Any], device: Any, after: Callable[[], Any] = lambda: None
) -> Optional[float]:
    """Largest difference between `final` and one process that trained on all shards; None when it is not compared.

    Args:
        final: dense parameters, then for each table the values of `rows` (all that the training touches).
        after: called after each piece of the work, which takes long on a busy node.
    """
    import torch

    if told.mode != clocks.SYNC or told.steps > MOST_COMPARED_STEPS or told.workers > MOST_COMPARED_RANKS:
        return None
    task, count = told.task, len(told.plan.dense)
    weights = [task.initial(p.name).view(p.shape).to(device) for p in told.plan.dense]
    tables = [task.initial_rows(table, known).to(device) for table, known in enumerate(rows)]
    rate = tasks.rate(task.base_rate, told.workers)
    for step in range(told.steps):
        found: List[Any] = []
        for worker in range(told.workers):
            asked, values, places = [], [], []
            for table, known in enumerate(rows):
                distinct, inverse, _ = deduplicated(task.ids(table, worker, step))
                where = torch.searchsorted(known, distinct).to(device)
                asked.append((distinct, inverse))
                places.append(where)
                values.append(tables[table][where])
            leaves = [tensor.detach().requires_grad_() for tensor in (*weights, *values)]
            _, gradients = gradients_of(task, worker, step, leaves, asked, count)
            found.append((gradients, places))
            after()
        for number, weight in enumerate(weights):
            total = found[0][0][number].clone()
            for gradients, _ in found[1:]:
                total += gradients[number]
            weight.add_(total, alpha=-rate)
        for table in range(len(tables)):
            for gradients, places in found:
                tables[table].index_add_(0, places[table], gradients[count + table], alpha=-rate)
    pairs = list(zip(final, (*weights, *tables)))
    return float(torch.stack([(a.to(device) - b).abs().max() for a, b in pairs if b.numel()]).max())
