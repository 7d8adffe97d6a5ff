"""Mutants of servers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reference_trainer.ps import clocks, settings
from reference_trainer.ps.clocks import Clocks
from reference_trainer.ps.exact import HostTensor, Store
from reference_trainer.ps.server_state import ServerState
from tests.mutants.patch import ALL_SERVERS, RECOVERY, SERVER, SERVERS, SINGLE, SSP, SYNC, Patch, half, mutant, wrap

#: Changes what a server adds: None leaves it out.
ChangePush = Callable[[Any], Any]
#: Changes the content of a shard, and of rows of a table, as it is read.
ChangePull = Callable[[Any, Any], Any]


def change_pushes(change: ChangePush, *, factor: float = 1.0) -> None:
    """Servers add something else than was pushed, whole shards and pieces of them."""

    def build(apply: Any) -> Any:
        pieces = apply.__name__ == "apply_piece"

        def wrong(self: Store, shard: Any, *more: Any) -> Any:
            at = 1 if pieces else 0
            numbers = change(more[at])
            if numbers is None:
                return apply(self, shard, *more[:at], more[at] * 0.0, *more[at + 1 :])
            return apply(self, shard, *more[:at], numbers, more[at + 1] * factor, *more[at + 2 :])

        wrong.__name__ = apply.__name__
        return wrong

    wrap(Store, "apply", build)
    wrap(Store, "apply_piece", build)


def change_pulls(patch: Patch, change: ChangePull) -> None:
    """Servers answer pulls with something else than they hold; `change` gets the shard's number and its content."""

    def read(original: Any) -> Any:
        def wrong(self: Store, shard: Any, into: Any, *more: Any) -> Any:
            result = original(self, shard, into, *more)
            into.copy_(change(("shard", shard.number), into))
            return result

        return wrong

    def view(original: Any) -> Any:
        def wrong(self: Store, shard: Any, *more: Any) -> Any:
            result = original(self, shard, *more)
            copy = HostTensor(shard.elements)
            copy.tensor.copy_(change(("shard", shard.number), self.part(shard)))
            patch.kept.setdefault("memory", []).append(copy)
            return (copy.bytes_of(0, shard.elements), *result[1:]) if isinstance(result, tuple) else copy.view

        return wrong

    wrap(Store, "read", read)
    wrap(Store, "view", view)


def change_rows_read(change: Callable[[int, Any, Any], Any]) -> None:
    """Servers answer look-ups with other rows; `change` gets the table, the row numbers and the values."""

    def build(original: Any) -> Any:
        def wrong(self: Store, table: int, rows: Any, into: Any, *more: Any) -> Any:
            result = original(self, table, rows, into, *more)
            into.copy_(change(table, rows, into.clone()))
            return result

        return wrong

    wrap(Store, "read_rows", build)


def change_row_updates(change: Callable[[Store, int, Any, Any], Any]) -> None:
    """Servers add something else to rows; `change` returns the row numbers and the values."""

    def build(original: Any) -> Any:
        def wrong(self: Store, table: int, rows: Any, numbers: Any, *more: Any) -> Any:
            rows, numbers = change(self, table, rows, numbers)
            return original(self, table, rows, numbers, *more)

        return wrong

    wrap(Store, "apply_rows", build)


def freeze(patch: Patch, *, only_training: bool) -> ChangePull:
    """The first content of each shard in each phase, for ever."""

    def change(key: Any, now: Any) -> Any:
        if only_training and not patch.training:
            return now
        first = patch.kept.setdefault((key, patch.training), now.clone())
        patch.hit()
        return first

    return change


@mutant(SERVER, *SERVERS)
def server_loses_one_push(patch: Patch) -> None:
    """The server does not add one push of the training, and counts it."""
    change_pushes(lambda numbers: None if patch.training and patch.once(5) else numbers)


@mutant(SERVER, *SERVERS)
def server_scales_pushes(patch: Patch) -> None:
    """The server adds half of every push."""
    change_pushes(lambda numbers: patch.hit() and numbers, factor=0.5)


@mutant(SERVER, *SERVERS)
def server_negates_one_push(patch: Patch) -> None:
    """The server subtracts one push of the training instead of adding it."""
    change_pushes(lambda numbers: -numbers if patch.training and patch.once(4) else numbers)


@mutant(SERVER, *SERVERS)
def server_rounds_pushes_to_half(patch: Patch) -> None:
    """The server rounds pushes to bfloat16."""
    change_pushes(lambda numbers: half(numbers) if patch.hit() else numbers)


@mutant(SERVER, *SERVERS)
def server_rounds_pushes_to_half_in_training(patch: Patch) -> None:
    """The server rounds pushes of the training to bfloat16."""
    change_pushes(lambda numbers: half(numbers) if patch.training and patch.hit() else numbers)


@mutant(SERVER, *SERVERS)
def server_truncates_pushes(patch: Patch) -> None:
    """The server leaves out the last eight numbers of every push."""

    def change(numbers: Any) -> Any:
        patch.hit()
        numbers = numbers.clone()
        numbers[-8:] = 0.0
        return numbers

    change_pushes(change)


@mutant(SERVER, *SINGLE)
def server_applies_pushes_one_step_late(patch: Patch) -> None:
    """The server adds a push when the next one comes, and the last one at the barrier."""
    waiting: dict[Any, Any] = {}

    def build(original: Any) -> Any:
        def late(self: Store, shard: Any, numbers: Any, *more: Any) -> Any:
            patch.hit()
            before = waiting.pop(shard.number, None)
            if before is not None:
                self._parts[shard.number].add_(before[0], alpha=before[1])
            waiting[shard.number] = (numbers.clone(), more[0])
            return original(self, shard, numbers * 0.0, *more)

        return late

    def advance(original: Any) -> Any:
        def flush(self: ServerState, *more: Any) -> Any:
            for number, (numbers, factor) in waiting.items():
                self.store._parts[number].add_(numbers, alpha=factor)
            waiting.clear()
            return original(self, *more)

        return flush

    wrap(Store, "apply", build)
    wrap(ServerState, "advance", advance)


@mutant(SERVER, *SERVERS)
def server_freezes_pulls(patch: Patch) -> None:
    """The server answers every pull of a phase with the first weights of that phase."""
    change_pulls(patch, freeze(patch, only_training=False))


@mutant(SERVER, *SERVERS)
def server_freezes_pulls_in_training(patch: Patch) -> None:
    """The server answers every pull of the training but the last with the first weights."""

    def change(key: Any, now: Any) -> Any:
        first = freeze(patch, only_training=True)(key, now)
        return now if patch.kept.get("over") else first

    def advance(original: Any) -> Any:
        def ended(self: ServerState, phase: int, *more: Any) -> Any:
            patch.kept["over"] = phase > settings.TRAINING
            return original(self, phase, *more)

        return ended

    change_pulls(patch, change)
    wrap(ServerState, "advance", advance)


@mutant(SERVER, *SERVERS)
def server_swaps_halves_of_pulls(patch: Patch) -> None:
    """The server swaps both halves of a shard when it answers pulls."""
    import torch

    def change(key: Any, now: Any) -> Any:
        patch.hit()
        middle = now.numel() // 2
        return torch.cat([now[middle:], now[:middle]])

    change_pulls(patch, change)


@mutant(SERVER, *SERVERS)
def server_zeroes_the_tail_of_pulls(patch: Patch) -> None:
    """The server sends zeros in place of the last four numbers of a shard in training."""

    def change(key: Any, now: Any) -> Any:
        if not patch.training:
            return now
        patch.hit()
        now = now.clone()
        now[-4:] = 0.0
        return now

    change_pulls(patch, change)


@mutant(SERVER, *SERVERS)
def server_freezes_rows(patch: Patch) -> None:
    """The server answers every look-up of a row with its first value."""
    change_rows_read(lambda table, rows, now: _first_rows(patch, table, rows, now))


@mutant(SERVER, *SERVERS)
def server_freezes_rows_in_training(patch: Patch) -> None:
    """The server answers every look-up of a row in training with its first value, but at the end with the last."""

    def change(table: int, rows: Any, now: Any) -> Any:
        if not patch.training or patch.kept.get("over"):
            return now
        return _first_rows(patch, table, rows, now)

    def advance(original: Any) -> Any:
        def ended(self: ServerState, phase: int, *more: Any) -> Any:
            patch.kept["over"] = phase > settings.TRAINING
            return original(self, phase, *more)

        return ended

    change_rows_read(change)
    wrap(ServerState, "advance", advance)


def _first_rows(patch: Patch, table: int, rows: Any, now: Any) -> Any:
    patch.hit()
    for place, row in enumerate(rows.tolist()):
        now[place] = patch.kept.setdefault((table, row, patch.training), now[place].clone())
    return now


@mutant(SERVER, *SERVERS)
def server_answers_previous_rows(patch: Patch) -> None:
    """The server sends the buffer of the previous look-up of that size again."""

    def change(table: int, rows: Any, now: Any) -> Any:
        before = patch.kept.get(("rows", table, tuple(now.shape)))
        patch.kept["rows", table, tuple(now.shape)] = now
        return now if before is None or not patch.hit() else before

    change_rows_read(change)


@mutant(SERVER, *SERVERS)
def server_reverses_rows(patch: Patch) -> None:
    """The server answers look-ups in reverse order."""
    change_rows_read(lambda table, rows, now: now.flip(0) if patch.hit() else now)


@mutant(SERVER, *SERVERS)
def server_answers_neighbour_rows(patch: Patch) -> None:
    """The server answers look-ups with the rows beside the right ones."""

    def build(original: Any) -> Any:
        def wrong(self: Store, table: int, rows: Any, *more: Any) -> Any:
            patch.hit()
            most = self.tables[table].rows
            return original(self, table, (rows + self._servers).clamp(max=most - 1 - self._servers), *more)

        return wrong

    wrap(Store, "read_rows", build)


@mutant(SERVER, *SERVERS)
def server_rounds_rows_to_half(patch: Patch) -> None:
    """The server rounds the rows of its answers to bfloat16."""
    change_rows_read(lambda table, rows, now: half(now) if patch.hit() else now)


@mutant(SERVER, *SERVERS)
def server_loses_row_updates(patch: Patch) -> None:
    """The server adds no update of rows in training."""

    def change(self: Store, table: int, rows: Any, numbers: Any) -> Any:
        return (rows, numbers * 0.0) if patch.training and patch.hit() else (rows, numbers)

    change_row_updates(change)


@mutant(SERVER, *SERVERS)
def server_doubles_one_row_update(patch: Patch) -> None:
    """The server adds one update of rows twice in training."""

    def change(self: Store, table: int, rows: Any, numbers: Any) -> Any:
        return (rows, numbers * 2.0) if patch.training and patch.once(7) else (rows, numbers)

    change_row_updates(change)


@mutant(SERVER, *SERVERS)
def server_scales_row_updates_in_training(patch: Patch) -> None:
    """The server adds half of each update of rows in training."""

    def change(self: Store, table: int, rows: Any, numbers: Any) -> Any:
        return (rows, numbers * 0.5) if patch.training and patch.hit() else (rows, numbers)

    change_row_updates(change)


@mutant(SERVER, *SERVERS)
def server_never_updates_the_last_column(patch: Patch) -> None:
    """The server leaves the last number of every row as it is."""

    def change(self: Store, table: int, rows: Any, numbers: Any) -> Any:
        patch.hit()
        numbers = numbers.clone()
        numbers[:, -1:] = 0.0
        return rows, numbers

    change_row_updates(change)


def change_sums(change: Callable[[int, Any], Any]) -> None:
    """A synchronous server sums something else than was pushed; `change` gets the worker and what it pushed."""

    def build(original: Any) -> Any:
        at = 1 if original.__name__ == "apply_piece" else 0

        def wrong(self: Store, shard: Any, *more: Any) -> Any:
            numbers = change(more[-1].worker, more[at])
            return original(self, shard, *more[:at], numbers, *more[at + 1 :])

        wrong.__name__ = original.__name__
        return wrong

    wrap(Store, "apply", build)
    wrap(Store, "apply_piece", build)


def change_rounds(change: Callable[[Store, Callable[[int], None], int], None]) -> None:
    """A synchronous server adds the sums of a round differently; `change` gets what adds them, and the clock."""

    def build(original: Any) -> Any:
        def wrong(self: Store, clock: int) -> None:
            change(self, lambda number: original(self, number), clock)

        return wrong

    wrap(Store, "add_round", build)


@mutant(SERVER, SYNC)
def server_sums_without_one_worker(patch: Patch) -> None:
    """One sum of the training lacks the last worker."""

    def change(worker: int, numbers: Any) -> Any:
        return numbers * 0.0 if worker == 2 and patch.training and patch.once(3) else numbers

    change_sums(change)


@mutant(SERVER, SYNC)
def server_adds_to_the_previous_sum(patch: Patch) -> None:
    """The sums of the training still hold those of the round before."""

    def change(held: Store, add: Callable[[int], None], clock: int) -> None:
        add(clock)
        if patch.training and patch.hit():
            held._begun = [[True] * len(parts) for parts in held._begun]

    change_rounds(change)


@mutant(SERVER, SYNC)
def server_adds_a_round_twice(patch: Patch) -> None:
    """The server adds the sums of one round of the training twice."""

    def change(held: Store, add: Callable[[int], None], clock: int) -> None:
        if patch.training and patch.once(3):
            for shard in held.shards:
                for mine, total in zip(_numbers(held, shard), held._totals[shard.number], strict=True):
                    mine.add_(total)
        add(clock)

    change_rounds(change)


def _numbers(held: Store, shard: Any) -> Any:
    return held._pieces[shard.number] if len(held._totals[shard.number]) > 1 else (held.part(shard),)


@mutant(SERVER, SYNC, *SINGLE)
def server_averages_pushes(patch: Patch) -> None:
    """The server divides by the number of workers once more in training."""

    def build(original: Any) -> Any:
        def wrong(self: ServerState) -> float:
            right = float(original.fget(self))
            return right / self.config.workers if patch.training and patch.hit() else right

        return property(wrong)

    wrap(ServerState, "factor", build)


@mutant(SERVER, SSP)
def server_does_not_wait_in_ssp(patch: Patch) -> None:
    """The server lets every worker read at once, and reports no staleness."""

    def read(original: Any) -> Any:
        def wrong(self: Clocks, worker: int, clock: int, on_wait: Any) -> float:
            patch.hit()
            with self.changed:
                self.staleness[0] = self.staleness.get(0, 0) + 1
            return 0.0

        return wrong

    wrap(clocks.Clocks, "await_read", read)


@mutant(SERVER, *SERVERS)
def server_keeps_exact_weights_for_training(patch: Patch) -> None:
    """The server trains the weights of the phase with known values."""

    def build(original: Any) -> Any:
        def wrong(self: Store, dense: Any, rows: Any) -> Any:
            if not patch.training:
                return original(self, dense, rows)
            patch.hit()
            return original(self, self.part, rows)

        return wrong

    wrap(Store, "fill", build)


@mutant(SERVER, *SERVERS)
def server_keeps_exact_rows_for_training(patch: Patch) -> None:
    """The server trains the rows of the phase with known values."""

    def build(original: Any) -> Any:
        def wrong(self: Store, dense: Any, rows: Any) -> Any:
            if not patch.training:
                return original(self, dense, rows)
            patch.hit()
            held = [table.clone() for table in self.rows]
            result = original(self, dense, rows)
            for table, before in zip(self.rows, held, strict=True):
                table.copy_(before)
            return result

        return wrong

    wrap(Store, "fill", build)


@mutant(ALL_SERVERS, *SERVERS)
def server_lets_workers_pass_barriers(patch: Patch) -> None:
    """All servers answer at barriers before the others have arrived. One server alone could not: the others wait."""

    def build(original: Any) -> Any:
        def wrong(self: Clocks, worker: int, phase: int, on_wait: Any, advance: Any) -> float:
            with self.changed:
                early = phase == self.phase and phase >= settings.EXACT and len(self._at_barrier) + 1 < self.workers
                if early:
                    self._at_barrier.add(worker)
            if early and patch.hit():
                return 0.0
            return float(original(self, worker, phase, on_wait, advance))

        return wrong

    wrap(Clocks, "barrier", build)


@mutant(SERVER, *SERVERS)
def server_skips_a_piece(patch: Patch) -> None:
    """The server leaves out the third piece of a large shard."""

    def build(original: Any) -> Any:
        def wrong(self: Store, shard: Any, piece: int, numbers: Any, *more: Any) -> Any:
            lost = piece == 2 and patch.hit()
            return original(self, shard, piece, numbers * 0.0 if lost else numbers, *more)

        wrong.__name__ = "apply_piece"
        return wrong

    wrap(Store, "apply_piece", build)


@mutant(SERVER, *SERVERS)
def server_swaps_pieces(patch: Patch) -> None:
    """The server adds the second piece of a large shard where the first belongs, and the first where the second."""

    def build(original: Any) -> Any:
        def wrong(self: Store, shard: Any, piece: int, numbers: Any, factor: float, *more: Any) -> Any:
            if piece in (0, 1):
                patch.hit()
                self._pieces[shard.number][1 - piece].add_(numbers, alpha=factor)
                numbers = numbers * 0.0
            return original(self, shard, piece, numbers, factor, *more)

        wrong.__name__ = "apply_piece"
        return wrong

    wrap(Store, "apply_piece", build)


@mutant(SERVER, *SERVERS)
def server_rounds_a_large_shard_to_half(patch: Patch) -> None:
    """The server rounds large pushes that it adds piece by piece to bfloat16."""

    def build(original: Any) -> Any:
        def wrong(self: Store, shard: Any, piece: int, numbers: Any, *more: Any) -> Any:
            patch.hit()
            return original(self, shard, piece, half(numbers), *more)

        wrong.__name__ = "apply_piece"
        return wrong

    wrap(Store, "apply_piece", build)


@mutant(SERVER, *RECOVERY)
def recovery_forgets_parts(patch: Patch) -> None:
    """The server forgets which parts of the cut push it has, and adds them again."""
    from reference_trainer.ps import connection as pushes

    def build(original: Any) -> Any:
        def wrong(host: Any, peer: Any, worker: int) -> Any:
            patch.hit()
            host.clocks.parts[worker] = 0
            return original(host, peer, worker)

        return wrong

    wrap(pushes, "replace_worker", build)


@mutant(SERVER, *RECOVERY)
def recovery_applies_repeated_parts(patch: Patch) -> None:
    """The server adds the parts of the cut push that the backup worker repeats."""
    from reference_trainer.ps.connection import PushParts

    def build(original: Any) -> Any:
        def wrong(self: PushParts, clock: int, part: int) -> bool:
            state = self._host.clocks
            if self.done_before[0] == clock and part < self.done_before[1]:
                state.parts[self._peer.index] = part
                return patch.hit()
            return bool(original(self, clock, part))

        return wrong

    wrap(PushParts, "is_due", build)


@mutant(SERVER, *RECOVERY)
def recovery_begins_one_push_late(patch: Patch) -> None:
    """The backup worker continues after the push that was cut off."""
    from reference_trainer.ps import connection as pushes

    def build(original: Any) -> Any:
        def wrong(host: Any, peer: Any, worker: int) -> Any:
            patch.hit()
            if host.clocks.parts[worker]:
                host.clocks.pushed(worker, host.clocks.clock[worker])
                peer.pushes += 1
            return original(host, peer, worker)

        return wrong

    wrap(pushes, "replace_worker", build)


@mutant(SERVER, *RECOVERY)
def recovery_rolls_weights_back(patch: Patch) -> None:
    """The server goes back to its first weights of the phase when a backup worker comes."""
    from reference_trainer.ps import connection as pushes

    def fill(original: Any) -> Any:
        def kept(self: Store, *more: Any) -> Any:
            result = original(self, *more)
            patch.kept["first"] = self.dense.clone()
            return result

        return kept

    def build(original: Any) -> Any:
        def wrong(host: Any, peer: Any, worker: int) -> Any:
            patch.hit()
            host.store.dense.copy_(patch.kept["first"])
            return original(host, peer, worker)

        return wrong

    wrap(Store, "fill", fill)
    wrap(pushes, "replace_worker", build)


@mutant(SERVER, *RECOVERY)
def recovery_clears_rows(patch: Patch) -> None:
    """The server sets all rows to zero when a backup worker comes."""
    from reference_trainer.ps import connection as pushes

    def build(original: Any) -> Any:
        def wrong(host: Any, peer: Any, worker: int) -> Any:
            patch.hit()
            for rows in host.store.rows:
                rows.zero_()
            return original(host, peer, worker)

        return wrong

    wrap(pushes, "replace_worker", build)
