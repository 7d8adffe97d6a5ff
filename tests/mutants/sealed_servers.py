"""Mutants of servers and workers that were written after the oracles."""

from __future__ import annotations

from typing import Any

from reference_trainer.ps import clocks, exact, worker_steps
from reference_trainer.ps.client import Client
from reference_trainer.ps.clocks import Clocks
from reference_trainer.ps.exact import Store
from reference_trainer.ps.layout import ParameterLayout
from tests.mutants.patch import (
    GEO,
    RECOVERY,
    SERVER,
    SERVERS,
    SINGLE,
    SPARE,
    SSP,
    SYNC,
    WORKER,
    Patch,
    half,
    mutant,
    wrap,
)
from tests.mutants.server import change_pulls, change_pushes, change_row_updates, change_sums
from tests.mutants.worker import TOGETHER, change_gradients


@mutant(SERVER, *SERVERS)
def server_loses_every_third_push(patch: Patch) -> None:
    """The server does not add every third push, and counts it."""
    change_pushes(lambda numbers: None if patch.once(1, "any") or _every(patch, 3) else numbers)


def _every(patch: Patch, number: int) -> bool:
    patch.kept["count"] = patch.kept.get("count", 0) + 1
    return bool(patch.kept["count"] % number == 0) and patch.hit()


@mutant(SERVER, *SERVERS)
def server_doubles_one_push(patch: Patch) -> None:
    """The server adds one push of the training twice."""
    change_pushes(lambda numbers: numbers * 2.0 if patch.training and patch.once(6) else numbers)


@mutant(SERVER, *SERVERS)
def server_scales_pushes_in_training(patch: Patch) -> None:
    """The server adds nine tenths of every push of the training."""
    change_pushes(lambda numbers: numbers * 0.9 if patch.training and patch.hit() else numbers)


@mutant(SERVER, *SERVERS)
def server_shifts_a_push(patch: Patch) -> None:
    """The server adds one push of the training shifted by one element."""
    change_pushes(lambda numbers: numbers.roll(1) if patch.training and patch.once(3) else numbers)


@mutant(SERVER, *SERVERS)
def server_applies_a_push_to_another_shard(patch: Patch) -> None:
    """The server adds one push of the training for its last shard to its first one."""

    def build(original: Any) -> Any:
        def wrong(self: Store, shard: Any, numbers: Any, factor: float, *more: Any) -> Any:
            if patch.training and shard is self.shards[-1] and len(self.shards) > 1 and patch.once(2):
                first = self._parts[0]
                size = min(first.numel(), numbers.numel())
                first[:size].add_(numbers[:size], alpha=factor)
                numbers = numbers * 0.0
            return original(self, shard, numbers, factor, *more)

        return wrong

    wrap(Store, "apply", build)


@mutant(SERVER, *SERVERS)
def server_applies_the_previous_push(patch: Patch) -> None:
    """The server adds the push before each one of that size again, in place of it."""

    def change(numbers: Any) -> Any:
        before = patch.kept.get(numbers.numel())
        patch.kept[numbers.numel()] = numbers.clone()
        return numbers if before is None or not patch.hit() else before

    change_pushes(change)


@mutant(SERVER, *SERVERS)
def server_counts_pushes_without_applying(patch: Patch) -> None:
    """The server adds no push of the training, and counts all."""
    change_pushes(lambda numbers: None if patch.training and patch.hit() else numbers)


@mutant(SERVER, *SERVERS)
def server_answers_pulls_one_step_late(patch: Patch) -> None:
    """The server answers each pull of the training with the content of the previous answer."""

    def change(key: Any, now: Any) -> Any:
        if not patch.training:
            return now
        before = patch.kept.get(key, now)
        patch.kept[key] = now.clone()
        patch.hit()
        return before

    change_pulls(patch, change)


@mutant(SERVER, *SERVERS)
def server_answers_with_another_shard(patch: Patch) -> None:
    """The server answers one pull of a shard with what it last sent of another shard of that size."""

    def change(key: Any, now: Any) -> Any:
        other = patch.kept.get(now.numel())
        patch.kept[now.numel()] = (key, now.clone())
        return other[1] if other is not None and other[0] != key and patch.once(9) else now

    change_pulls(patch, change)


@mutant(SERVER, *SERVERS)
def server_rounds_pulls_to_half(patch: Patch) -> None:
    """The server rounds the weights that it sends to bfloat16 in training."""
    change_pulls(patch, lambda key, now: half(now) if patch.training and patch.hit() else now)


@mutant(SERVER, *SERVERS)
def server_scales_pulls_in_training(patch: Patch) -> None:
    """The server sends weights that are one per cent too large, in training."""
    change_pulls(patch, lambda key, now: now * 1.01 if patch.training and patch.hit() else now)


@mutant(SERVER, *SERVERS)
def server_answers_one_worker_with_old_weights(patch: Patch) -> None:
    """The server answers every third pull of the training with its first weights."""

    def change(key: Any, now: Any) -> Any:
        if not patch.training:
            return now
        first = patch.kept.setdefault(key, now.clone())
        return first if _every(patch, 3) else now

    change_pulls(patch, change)


@mutant(SERVER, *SERVERS)
def server_answers_one_pull_with_first_weights(patch: Patch) -> None:
    """The server answers one pull of the training with its first weights."""

    def change(key: Any, now: Any) -> Any:
        if not patch.training:
            return now
        first = patch.kept.setdefault(key, now.clone())
        return first if patch.once(11) else now

    change_pulls(patch, change)


@mutant(SERVER, *SERVERS)
def server_loses_one_row_update(patch: Patch) -> None:
    """The server does not add one update of rows in training."""

    def change(self: Store, table: int, rows: Any, numbers: Any) -> Any:
        return (rows, numbers * 0.0) if patch.training and patch.once(5) else (rows, numbers)

    change_row_updates(change)


@mutant(SERVER, *SERVERS)
def server_updates_neighbour_rows(patch: Patch) -> None:
    """The server adds updates to the rows after the right ones in training."""

    def change(self: Store, table: int, rows: Any, numbers: Any) -> Any:
        if not patch.training:
            return rows, numbers
        patch.hit()
        held = self.rows[table].shape[0]
        local = (rows.div(self._servers, rounding_mode="floor") + 1) % held
        return local * self._servers + self._server, numbers

    change_row_updates(change)


@mutant(SERVER, *SERVERS)
def server_updates_rows_of_previous_push(patch: Patch) -> None:
    """The server adds updates to the rows of the previous update of that size."""

    def change(self: Store, table: int, rows: Any, numbers: Any) -> Any:
        before = patch.kept.get((table, rows.numel()), rows)
        patch.kept[table, rows.numel()] = rows.clone()
        if before.numel() and not bool((before == rows).all()):
            patch.hit()
        return before, numbers

    change_row_updates(change)


@mutant(SERVER, SYNC)
def server_counts_one_worker_twice(patch: Patch) -> None:
    """One sum of the training holds the first worker twice and lacks the last."""

    def change(worker: int, numbers: Any) -> Any:
        if worker == 0 and patch.training and patch.once(4, "first"):
            return numbers * 2.0
        return numbers * 0.0 if worker == 2 and patch.training and patch.once(4, "last") else numbers

    change_sums(change)


@mutant(SERVER, SYNC)
def server_sums_an_old_push(patch: Patch) -> None:
    """The sums of the training hold the previous push of the last worker."""

    def build(original: Any) -> Any:
        at = 1 if original.__name__ == "apply_piece" else 0

        def wrong(self: Store, shard: Any, *more: Any) -> Any:
            numbers = more[at]
            if more[-1].worker == 2:
                key = (shard.number, *more[:at])
                now = numbers.clone()
                if patch.training and key in patch.kept and patch.hit():
                    numbers = patch.kept[key]
                patch.kept[key] = now
            return original(self, shard, *more[:at], numbers, *more[at + 1 :])

        wrong.__name__ = original.__name__
        return wrong

    wrap(Store, "apply", build)
    wrap(Store, "apply_piece", build)


@mutant(SERVER, SYNC)
def server_sums_only_the_last_push(patch: Patch) -> None:
    """Each push of the training replaces the sum instead of being added, as two threads would that both came first."""

    def build(original: Any) -> Any:
        def wrong(self: Store, shard: Any, part: int, *more: Any) -> None:
            if patch.training and patch.hit():
                self._begun[shard.number][part] = False
            original(self, shard, part, *more)

        return wrong

    wrap(Store, "_add", build)


@mutant(SERVER, SYNC)
def server_does_not_wait_for_the_round(patch: Patch) -> None:
    """The server lets workers read before the round is complete."""

    def build(original: Any) -> Any:
        def wrong(self: Clocks, worker: int, clock: int, on_wait: Any) -> float:
            if self.applied < clock:
                patch.hit()
            with self.changed:
                self.staleness[0] = self.staleness.get(0, 0) + 1
            return 0.0

        return wrong

    wrap(clocks.Clocks, "await_read", build)


@mutant(SERVER, SSP)
def server_waits_one_step_too_little(patch: Patch) -> None:
    """The server lets workers run one step further ahead than the bound, and reports the bound."""

    def build(original: Any) -> Any:
        def wrong(self: Clocks, worker: int, clock: int) -> None:
            original(self, worker, clock)
            if self.staleness.pop(self._bound, 0):
                self.staleness[self._bound - 1] = self.staleness.get(self._bound - 1, 0) + 1

        return wrong

    def init(original: Any) -> Any:
        def wrong(self: Clocks, *more: Any, **options: Any) -> None:
            original(self, *more, **options)
            self._bound += 1
            patch.hit()

        return wrong

    wrap(Clocks, "_measure", build)
    wrap(Clocks, "__init__", init)


@mutant(SERVER, *SERVERS)
def server_doubles_a_piece(patch: Patch) -> None:
    """The server adds the last piece of a large shard twice."""

    def build(original: Any) -> Any:
        def wrong(self: Store, shard: Any, piece: int, numbers: Any, *more: Any) -> Any:
            last = piece + 1 == self.pieces(shard) and patch.hit()
            return original(self, shard, piece, numbers * 2.0 if last else numbers, *more)

        wrong.__name__ = "apply_piece"
        return wrong

    wrap(Store, "apply_piece", build)


@mutant(SERVER, *SINGLE)
def server_answers_old_pieces(patch: Patch) -> None:
    """The server sends the first piece of large shards as it was at the first pull."""

    def change(key: Any, now: Any) -> Any:
        if now.numel() < 2048:
            return now
        piece = exact.piece_size(now.numel())
        now = now.clone()
        now[:piece] = patch.kept.setdefault((key, patch.training), now[:piece].clone())
        patch.hit()
        return now

    change_pulls(patch, change)


@mutant(WORKER, *SERVERS)
def worker_never_refreshes_one_server(patch: Patch) -> None:
    """The worker keeps the first weights of server 1 in training."""

    def build(original: Any) -> Any:
        def wrong(self: Client, *more: Any) -> Any:
            result = original(self, *more)
            if patch.training:
                patch.hit()
                pulled = self.servers[1].pulled.tensor
                pulled.copy_(patch.kept.setdefault("first", pulled.clone()))
            return result

        return wrong

    wrap(Client, "receive_dense", build)


@mutant(WORKER, *SERVERS)
def worker_uses_previous_rows(patch: Patch) -> None:
    """The worker computes with the rows of its previous look-up."""

    def build(original: Any) -> Any:
        def wrong(self: Client, table: int, rows: Any) -> Any:
            found = original(self, table, rows)
            if not patch.training:
                return found
            before = patch.kept.get(table, found)
            patch.kept[table] = found.clone()
            return before if before.shape == found.shape and patch.hit() else found

        return wrong

    wrap(Client, "receive_rows", build)


@mutant(WORKER, *TOGETHER)
def worker_pushes_previous_gradient(patch: Patch) -> None:
    """The worker pushes the dense gradients of its previous step."""

    def change(dense: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        before = patch.kept.get("dense", dense)
        patch.kept["dense"] = [t.clone() for t in dense]
        return before, rows

    change_gradients(patch, change)


@mutant(WORKER, *SERVERS)
def worker_doubles_gradients(patch: Patch) -> None:
    """The worker pushes twice its gradients."""
    change_gradients(patch, lambda dense, rows: ([t * 2.0 for t in dense], [t * 2.0 for t in rows]))


@mutant(WORKER, *TOGETHER)
def worker_accumulates_gradients(patch: Patch) -> None:
    """The worker pushes the sum of its gradients so far."""

    def change(dense: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        total = [a + b for a, b in zip(dense, patch.kept.get("sum", [0.0] * len(dense)), strict=True)]
        patch.kept["sum"] = total
        return total, rows

    change_gradients(patch, change)


@mutant(WORKER, *SERVERS)
def worker_mixes_up_rows_of_servers(patch: Patch) -> None:
    """The worker puts the rows of both servers into each other's places in training."""

    def build(original: Any) -> Any:
        def wrong(self: Client, table: int, rows: Any) -> Any:
            found = original(self, table, rows)
            if patch.training:
                patch.hit()
                first, second = rows.mine[0][1], rows.mine[1][1]
                size = min(first.numel(), second.numel())
                kept = found[first[:size]].clone()
                found[first[:size]] = found[second[:size]]
                found[second[:size]] = kept
            return found

        return wrong

    wrap(Client, "receive_rows", build)


@mutant(WORKER, *SERVERS)
def worker_reverses_row_gradients(patch: Patch) -> None:
    """The worker pushes its row gradients in reverse order."""
    change_gradients(patch, lambda dense, rows: (dense, [t.flip(0) for t in rows]))


@mutant(WORKER, *SERVERS)
def worker_shifts_gradients(patch: Patch) -> None:
    """The worker pushes its dense gradients shifted by one element."""
    change_gradients(patch, lambda dense, rows: ([t.flatten().roll(1).view_as(t) for t in dense], rows))


@mutant(WORKER, *SERVERS)
def worker_skips_the_last_step(patch: Patch) -> None:
    """The last push of the worker holds zeros."""

    def build(original: Any) -> Any:
        def wrong(task: Any, worker: int, step: int, *more: Any) -> Any:
            loss, found = original(task, worker, step, *more)
            if patch.training and step == 19 and patch.hit():
                found = [t * 0.0 for t in found]
            return loss, found

        return wrong

    wrap(worker_steps, "gradients_of", build)


@mutant(WORKER, *SERVERS)
def worker_swaps_servers_in_pushes(patch: Patch) -> None:
    """The worker sends the first shard of each server to the other one, as far as it fits."""

    def build(original: Any) -> Any:
        def wrong(self: Client, clock: int, *more: Any, **options: Any) -> Any:
            if patch.training:
                first, second = (server.shards[0] for server in self.servers)
                if first.elements == second.elements:
                    patch.hit()
                    a, b = self.servers[0].outgoing, self.servers[1].outgoing
                    a[0], b[0] = b[0], a[0]
            return original(self, clock, *more, **options)

        return wrong

    wrap(Client, "push", build)


def local_steps(patch: Patch, change: Any) -> None:
    """Change what the steps of a round do; `change` gets the number of the step and the gradients."""

    def build(original: Any) -> Any:
        def wrong(task: Any, worker: int, step: int, *more: Any) -> Any:
            loss, found = original(task, worker, step, *more)
            return (loss, change(step, found)) if patch.training else (loss, found)

        return wrong

    wrap(worker_steps, "gradients_of", build)


@mutant(WORKER, GEO)
def geo_pushes_only_the_first_local_step(patch: Patch) -> None:
    """Only the first local step of each round has an effect."""
    local_steps(patch, lambda step, found: [t * 0.0 for t in found] if step % 5 and patch.hit() else found)


@mutant(WORKER, GEO)
def geo_uses_the_base_of_the_previous_round(patch: Patch) -> None:
    """The worker computes the difference from the weights of the previous round."""

    def build(original: Any) -> Any:
        def wrong(self: ParameterLayout, values: Any, servers: Any) -> Any:
            if patch.training:
                base = [tensor.clone() for tensor in self.gather(servers)]
                before = patch.kept.get("base", base)
                patch.kept["base"] = base
                patch.hit()
                values = [v + b - a for v, b, a in zip(values, base, before, strict=True)]
            return original(self, values, servers)

        return wrong

    wrap(ParameterLayout, "scatter", build)


@mutant(WORKER, GEO)
def geo_doubles_differences(patch: Patch) -> None:
    """The worker pushes twice its difference."""

    def build(original: Any) -> Any:
        def wrong(self: ParameterLayout, values: Any, servers: Any) -> Any:
            if patch.training and patch.hit():
                values = [value * 2.0 for value in values]
            return original(self, values, servers)

        return wrong

    wrap(ParameterLayout, "scatter", build)


@mutant(WORKER, GEO)
def geo_doubles_the_local_rate(patch: Patch) -> None:
    """The local steps use twice the learning rate."""
    local_steps(patch, lambda step, found: [t * 2.0 for t in found] if patch.hit() else found)


@mutant(SERVER, *RECOVERY)
def recovery_drops_rows_of_the_cut_push(patch: Patch) -> None:
    """The first update of rows after a replacement is not added."""
    from reference_trainer.ps import connection as pushes

    def build(original: Any) -> Any:
        def wrong(*more: Any) -> Any:
            patch.kept["due"] = True
            return original(*more)

        return wrong

    def change(self: Store, table: int, rows: Any, numbers: Any) -> Any:
        if patch.kept.pop("due", False) and patch.hit():
            return rows, numbers * 0.0
        return rows, numbers

    wrap(pushes, "replace_worker", build)
    change_row_updates(change)


@mutant(SPARE, *RECOVERY)
def spare_repeats_its_first_gradient(patch: Patch) -> None:
    """The backup worker pushes its first gradients again and again."""

    def change(dense: list[Any], rows: list[Any]) -> tuple[list[Any], list[Any]]:
        first: list[Any] = patch.kept.setdefault("first", [t.clone() for t in dense])
        return first, rows

    change_gradients(patch, change)
