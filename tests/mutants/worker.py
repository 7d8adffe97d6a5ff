"""Mutants of workers, and of the backup worker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reference_trainer.ps import worker_steps
from reference_trainer.ps.client import Client, Server
from reference_trainer.ps.layout import ParameterLayout
from reference_trainer.ps.worker_steps import WorkerSteps
from tests.mutants.patch import ASYNC, GEO, RECOVERY, SERVERS, SPARE, SSP, SYNC, WORKER, Patch, half, mutant, wrap

TOGETHER = (SYNC, ASYNC, SSP)


def change_weights(patch: Patch, change: Callable[[list[Any]], list[Any]]) -> None:
    """The worker computes with other dense parameters than it pulled, in training but not at its end."""

    def build(original: Any) -> Any:
        def wrong(self: ParameterLayout, *more: Any) -> Any:
            found = original(self, *more)
            return change(found) if patch.training else found

        return wrong

    wrap(ParameterLayout, "gather", build)


def change_gradients(
    patch: Patch, change: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]], *, once: int = 0
) -> None:
    """The worker pushes other gradients than it computed; `change` gets those of dense parameters and of rows."""

    def build(original: Any) -> Any:
        def wrong(self: WorkerSteps, step: int, *more: Any) -> Any:
            loss, dense, rows = original(self, step, *more)
            if not once or patch.once(once):
                patch.hit()
                dense, rows = change(dense, rows)
            return loss, dense, rows

        return wrong

    def local(original: Any) -> Any:
        def wrong(task: Any, worker: int, step: int, leaves: Any, requested: Any, dense: int) -> Any:
            loss, found = original(task, worker, step, leaves, requested, dense)
            if patch.training and (not once or patch.once(once)):
                patch.hit()
                first, second = change(found[:dense], found[dense:])
                found = [*first, *second]
            return loss, found

        return wrong

    if patch.mode.endswith(GEO):
        wrap(worker_steps, "gradients_of", local)
    else:
        wrap(WorkerSteps, "_gradients", build)


@mutant(WORKER, *SERVERS)
def worker_never_refreshes_weights(patch: Patch) -> None:
    """The worker computes every step with the first weights that it pulled."""

    def change(found: list[Any]) -> list[Any]:
        first: list[Any] = patch.kept.setdefault("first", [tensor.clone() for tensor in found])
        patch.hit()
        return first

    change_weights(patch, change)


@mutant(WORKER, *SERVERS)
def worker_uses_previous_weights(patch: Patch) -> None:
    """The worker computes with the weights of the previous pull."""

    def change(found: list[Any]) -> list[Any]:
        before: list[Any] = patch.kept.get("before", found)
        patch.kept["before"] = [tensor.clone() for tensor in found]
        patch.hit()
        return before

    change_weights(patch, change)


@mutant(WORKER, *SERVERS)
def worker_never_refreshes_rows(patch: Patch) -> None:
    """The worker computes every step with the first values of each row."""

    def build(original: Any) -> Any:
        def wrong(self: Client, table: int, rows: Any) -> Any:
            found = original(self, table, rows)
            if patch.training:
                patch.hit()
                for place, row in enumerate(rows.rows.tolist()):
                    found[place] = patch.kept.setdefault((table, row), found[place].clone())
            return found

        return wrong

    wrap(Client, "receive_rows", build)


@mutant(WORKER, *SERVERS)
def worker_pushes_zeros_once(patch: Patch) -> None:
    """The worker pushes zeros in one step of the training."""
    change_gradients(patch, lambda dense, rows: ([t * 0.0 for t in dense], [t * 0.0 for t in rows]), once=3)


@mutant(WORKER, *SERVERS)
def worker_rounds_gradients_to_half(patch: Patch) -> None:
    """The worker rounds its gradients to bfloat16 in training."""
    change_gradients(patch, lambda dense, rows: ([half(t) for t in dense], [half(t) for t in rows]))


@mutant(WORKER, *SERVERS)
def worker_rounds_weights_to_half(patch: Patch) -> None:
    """The worker rounds the weights that it pulls to bfloat16 in training."""
    change_weights(patch, lambda found: [half(tensor) for tensor in found] if patch.hit() else found)


@mutant(WORKER, *SERVERS)
def worker_trains_on_the_data_of_another(patch: Patch) -> None:
    """The worker trains on the samples of worker 0."""

    def build(original: Any) -> Any:
        def wrong(task: Any, worker: int, step: int, leaves: Any, requested: Any, dense: int) -> Any:
            _, ids, _ = task.samples(worker)
            other = task.samples(0)
            task._samples[worker] = (other[0], ids, other[2])
            patch.hit()
            return original(task, worker, step, leaves, requested, dense)

        return wrong

    wrap(worker_steps, "gradients_of", build)


@mutant(WORKER, *SERVERS)
def worker_drops_the_gradient_of_one_parameter(patch: Patch) -> None:
    """The worker pushes zeros for the last bias."""
    change_gradients(patch, lambda dense, rows: ([*dense[:-1], dense[-1] * 0.0], rows))


@mutant(WORKER, *SERVERS)
def worker_counts_repeated_rows_once(patch: Patch) -> None:
    """The worker takes the gradient of one occurrence of each row, not the sum of all."""

    def build(original: Any) -> Any:
        def wrong(task: Any, worker: int, step: int, leaves: Any, requested: Any, dense: int) -> Any:
            import torch

            loss, found = original(task, worker, step, leaves, requested, dense)
            for at, (_, inverse) in enumerate(requested):
                counts = torch.bincount(inverse, minlength=found[dense + at].shape[0]).clamp(min=1)
                found[dense + at] = found[dense + at] / counts.unsqueeze(1)
                patch.hit()
            return loss, found

        return wrong

    wrap(worker_steps, "gradients_of", build)


@mutant(WORKER, *TOGETHER)
def worker_pushes_previous_row_gradients(patch: Patch) -> None:
    """The worker pushes the row gradients of its previous step."""

    def change(dense: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        before = patch.kept.get("rows", rows)
        patch.kept["rows"] = rows
        return dense, before

    change_gradients(patch, change)


@mutant(WORKER, *SERVERS)
def worker_scales_row_gradients(patch: Patch) -> None:
    """The worker pushes half of its row gradients."""
    change_gradients(patch, lambda dense, rows: (dense, [t * 0.5 for t in rows]))


@mutant(WORKER, *SERVERS)
def worker_truncates_gradients(patch: Patch) -> None:
    """The worker pushes zeros for the second half of its largest gradient."""

    def change(dense: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        largest = max(range(len(dense)), key=lambda place: dense[place].numel())
        flat = dense[largest].flatten().clone()
        flat[flat.numel() // 2 :] = 0.0
        return [flat.view_as(t) if place == largest else t for place, t in enumerate(dense)], rows

    change_gradients(patch, change)


@mutant(WORKER, *SERVERS)
def worker_clips_gradients(patch: Patch) -> None:
    """The worker clips its gradients."""
    change_gradients(patch, lambda dense, rows: ([t.clamp(-0.005, 0.005) for t in dense], rows))


@mutant(WORKER, *TOGETHER)
def worker_averages_gradients_with_previous(patch: Patch) -> None:
    """The worker pushes the mean of this gradient and the previous one."""

    def change(dense: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        before = patch.kept.get("dense", dense)
        patch.kept["dense"] = [t.clone() for t in dense]
        return [(a + b) * 0.5 for a, b in zip(dense, before, strict=True)], rows

    change_gradients(patch, change)


@mutant(WORKER, *SERVERS)
def worker_marks_rows_as_same(patch: Patch) -> None:
    """The worker updates the rows of the first look-up of that size again and again, as if they were the same."""

    def build(original: Any) -> Any:
        def wrong(self: Client, server: Server, clock: int, rows: Any, numbers: Any, *more: Any) -> Any:
            import torch

            changed = []
            for table, (part, values) in enumerate(zip(rows, numbers, strict=True)):
                first = patch.kept.setdefault((table, values.shape[0]), part)
                if first is not part and not torch.equal(first.rows, part.rows):
                    patch.hit()
                    mine = {row: place for place, row in enumerate(part.rows.tolist())}
                    values = values.clone()
                    for place, row in enumerate(first.rows.tolist()):
                        values[place] = values[mine[row]] if row in mine else values[place] * 0.5
                changed.append(values)
            return original(self, server, clock, rows, changed, *more)

        return wrong

    wrap(Client, "_push_to", build)


@mutant(WORKER, GEO)
def geo_pushes_weights_instead_of_differences(patch: Patch) -> None:
    """The worker pushes a part of its weights where their difference belongs."""

    def build(original: Any) -> Any:
        def wrong(self: ParameterLayout, values: Any, servers: Any) -> Any:
            if patch.training:
                patch.hit()
                values = [a + 0.05 * b for a, b in zip(values, self.gather(servers), strict=True)]
            return original(self, values, servers)

        return wrong

    wrap(ParameterLayout, "scatter", build)


@mutant(WORKER, GEO)
def geo_never_pulls(patch: Patch) -> None:
    """The worker trains on its own copy and never takes the others' updates over."""

    def change(found: list[Any]) -> list[Any]:
        patch.hit()
        base = patch.kept.setdefault("base", [tensor.clone() for tensor in found])
        return [tensor.clone() for tensor in base]

    def scatter(original: Any) -> Any:
        def kept(self: ParameterLayout, values: Any, servers: Any) -> Any:
            for own, moved in zip(patch.kept.get("base", ()), values, strict=False):
                own.add_(moved)
            return original(self, values, servers)

        return kept

    change_weights(patch, change)
    wrap(ParameterLayout, "scatter", scatter)


@mutant(WORKER, GEO)
def geo_skips_row_differences(patch: Patch) -> None:
    """The worker pushes zeros for the rows in training."""

    def build(original: Any) -> Any:
        def wrong(self: Client, clock: int, rows: Any, numbers: Any, **more: Any) -> Any:
            if patch.training:
                patch.hit()
                numbers = [values * 0.0 for values in numbers]
            return original(self, clock, rows, numbers, **more)

        return wrong

    wrap(Client, "push", build)


@mutant(WORKER, GEO)
def geo_pushes_gradients_instead_of_differences(patch: Patch) -> None:
    """The worker pushes its difference divided by the learning rate."""

    def build(original: Any) -> Any:
        def wrong(self: ParameterLayout, values: Any, servers: Any) -> Any:
            if patch.training:
                patch.hit()
                values = [value * 4.0 for value in values]
            return original(self, values, servers)

        return wrong

    wrap(ParameterLayout, "scatter", build)


@mutant(WORKER, GEO)
def geo_loses_the_last_round(patch: Patch) -> None:
    """The worker pushes zeros in its last round."""

    def build(original: Any) -> Any:
        def wrong(self: Client, clock: int, rows: Any, numbers: Any, **more: Any) -> Any:
            if patch.training and clock == self.config.rounds(self.config.steps) - 1:
                patch.hit()
                numbers = [values * 0.0 for values in numbers]
                for server in self.servers:
                    server.pushed.tensor.zero_()
            return original(self, clock, rows, numbers, **more)

        return wrong

    wrap(Client, "push", build)


@mutant(SPARE, *RECOVERY)
def spare_trains_on_the_data_of_another(patch: Patch) -> None:
    """The backup worker trains on the samples of worker 0."""
    worker_trains_on_the_data_of_another(patch)


@mutant(SPARE, *RECOVERY)
def spare_pushes_zeros_first(patch: Patch) -> None:
    """The first push of the backup worker holds zeros."""
    change_gradients(patch, lambda dense, rows: ([t * 0.0 for t in dense], [t * 0.0 for t in rows]), once=1)


@mutant(SPARE, *RECOVERY)
def spare_skips_one_server(patch: Patch) -> None:
    """The backup worker sends zeros to server 1."""

    def build(original: Any) -> Any:
        def wrong(self: Client, server: Server, clock: int, rows: Any, numbers: Any, *more: Any) -> Any:
            if server.index == 1:
                patch.hit()
                numbers = [values * 0.0 for values in numbers]
                zeros = server.pushed.tensor.zero_()
                server.send_pushed_buffer()
                assert zeros is server.pushed.tensor
            return original(self, server, clock, rows, numbers, *more)

        return wrong

    wrap(Client, "_push_to", build)


@mutant(SPARE, *RECOVERY)
def spare_never_refreshes_weights(patch: Patch) -> None:
    """The backup worker computes every step with the first weights that it pulled."""
    worker_never_refreshes_weights(patch)


@mutant(SPARE, *RECOVERY)
def spare_uses_first_rows(patch: Patch) -> None:
    """The backup worker computes every step with the first values of each row."""
    worker_never_refreshes_rows(patch)
