"""Schedules of pipelines: every microbatch once and in order, no more in flight than allowed, and never a deadlock."""

from __future__ import annotations

import itertools

import pytest

from reference_trainer.pipeline import stage as schedules
from reference_trainer.pipeline.stage import BACKWARD, FORWARD, Slot

SIZES = list(itertools.product(range(1, 9), range(1, 9)))


def short(slots: list[Slot]) -> str:
    return " ".join(f"{slot.kind[0].upper()}{slot.microbatch}" for slot in slots)


def test_schedules_match_the_papers() -> None:
    assert short(schedules.gpipe(1, 4, 3)) == "F0 F1 F2 B0 B1 B2"
    assert short(schedules.one_f_one_b(0, 3, 4)) == "F0 F1 F2 B0 F3 B1 B2 B3"
    assert short(schedules.one_f_one_b(1, 3, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert short(schedules.one_f_one_b(2, 3, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3"
    assert short(schedules.one_f_one_b(0, 4, 2)) == "F0 F1 B0 B1"


EACH_SCHEDULE = pytest.mark.parametrize("schedule", sorted(schedules.SCHEDULES))


@EACH_SCHEDULE
def test_each_microbatch_runs_once_within_the_bound(schedule: str) -> None:
    for stage, stages, microbatches in ((stage, *size) for size in SIZES for stage in range(size[0])):
        slots = schedules.SCHEDULES[schedule](stage, stages, microbatches)
        for kind in (FORWARD, BACKWARD):
            assert [slot.microbatch for slot in slots if slot.kind == kind] == list(range(microbatches))
        assert all(slots.index(Slot(FORWARD, m)) < slots.index(Slot(BACKWARD, m)) for m in range(microbatches))
        in_flight = itertools.accumulate(1 if slot.kind == FORWARD else -1 for slot in slots)
        bound = microbatches if schedule == schedules.GPIPE else min(stages - stage, microbatches)
        assert max(in_flight) == bound, (stage, stages, microbatches)


def finished(plans: list[list[Slot]]) -> bool:
    """Simulate the exchanges of all stages with blocking sends; all halves of an exchange run together."""
    stages = len(plans)
    moves = [schedules.exchanges(slots, stage, stages) for stage, slots in enumerate(plans)]
    at = [0] * stages
    through: list[set[str]] = [set() for _ in plans]  # finished halves of the current exchange
    moved = True
    while moved:
        moved = False
        for stage in range(stages):
            if at[stage] == len(moves[stage]):
                continue
            move = moves[stage][at[stage]]
            if (
                move.send_to is not None
                and "send" not in through[stage]
                and at[move.send_to] < len(moves[move.send_to])
            ):
                other = moves[move.send_to][at[move.send_to]]
                if other.receive_from == stage and "receive" not in through[move.send_to]:
                    assert other.receive == move.send, "another microbatch than the one that is awaited"
                    through[stage].add("send")
                    through[move.send_to].add("receive")
                    moved = True
            needed = {"send"} if move.send_to is not None else set()
            needed |= {"receive"} if move.receive_from is not None else set()
            if needed <= through[stage]:
                at[stage] += 1
                through[stage] = set()
                moved = True
    return all(place == len(move) for place, move in zip(at, moves, strict=True))


@EACH_SCHEDULE
def test_no_schedule_deadlocks_with_blocking_sends(schedule: str) -> None:
    for stages, microbatches in SIZES:
        plans = [schedules.SCHEDULES[schedule](stage, stages, microbatches) for stage in range(stages)]
        assert finished(plans), (stages, microbatches)


def test_mixed_schedules_deadlock() -> None:
    assert not finished([schedules.gpipe(0, 2, 4), schedules.one_f_one_b(1, 2, 4)])


def test_weights_change_between_passes_without_a_flush() -> None:
    first, last = schedules.one_f_one_b(0, 3, 5), schedules.one_f_one_b(2, 3, 5)
    assert schedules.versions(first, flush=False) == [0, 0, 0, 1, 2]
    assert schedules.versions(last, flush=False) == [0, 1, 2, 3, 4]
    assert schedules.versions(first, flush=True) == [0] * 5


def test_bubble_follows_the_formula() -> None:
    assert schedules.bubble(4, 8) == 3 / 11
    assert schedules.bubble(1, 8) == 0.0
