"""The state of a run from its steps: stages with their times, awaited nodes, and phases of ranks."""

from __future__ import annotations

from preflight.model.progress import Step
from preflight.reporters.live.display import Stage, Watch


def watch_after(*steps: tuple[float, Step]) -> tuple[Watch, list[Stage]]:
    """The watch after these steps, and the stages that they ended."""
    watch, over = Watch(), []
    for at_s, step in steps:
        over.extend(watch.update(step, at_s))
    return watch, over


def test_planned_stages_are_listed() -> None:
    watch, over = watch_after((0, Step("open", planned=("open", "node", "smoke"))))
    assert list(watch.stages) == ["open", "node", "smoke"]
    assert watch.now is watch.stages["open"]
    assert not over


def test_a_stage_counts_answers_and_names_awaited_nodes() -> None:
    watch, _ = watch_after((10.0, Step("node", 30, 80, ("node2", "node3"), 8.0, nodes=4)))
    stage = watch.stages["node"]
    assert (stage.progress_text(), stage.awaited(), stage.time(12.0)) == (
        "2 of 4 nodes",
        "node[2-3]",
        "2 s of at most 8",
    )


def test_many_awaited_nodes_are_counted() -> None:
    watch, _ = watch_after((0.0, Step("open", 0, 40, tuple(f"n{n:02}" for n in range(40)), nodes=40)))
    assert watch.stages["open"].awaited() == "n[00-15] and 24 more"


def test_a_stage_that_ends_keeps_its_time() -> None:
    watch, over = watch_after((1.0, Step("node", 0, 4)), (3.5, Step("node", ended=True)), (4.0, Step("node", 1, 4)))
    assert over == [watch.stages["node"]]
    assert watch.stages["node"].time(99.0) == "2.5 s"
    assert watch.now is None


def test_the_next_stage_ends_the_one_before() -> None:
    _, over = watch_after((0.0, Step("files", 1, 9)), (2.0, Step("judge", 0, 60)))
    assert [(stage.name, stage.time(9)) for stage in over] == [("files", "2.0 s")]


def test_a_stage_too_short_to_see_is_not_reported() -> None:
    _, over = watch_after((0.0, Step("gather")), (0.05, Step("open", 0, 2)))
    assert over == []


def test_a_skipped_stage_has_its_reason() -> None:
    planned = Step("open", planned=("open", "smoke"))
    watch, over = watch_after((0.0, planned), (0.05, Step("smoke", ended=True, skipped="WLD001")))
    assert [stage.end_reason() for stage in over] == ["skipped, WLD001"]
    assert watch.now is None


def test_ranks_are_grouped_by_phase_slowest_first() -> None:
    steps = [Step("smoke", party=f"rank {n}", node=f"node{n // 2 + 1}") for n in range(6)]
    steps += [Step("smoke", party=f"rank {n}", node=f"node{n // 2 + 1}", phase="exact") for n in (0, 1, 3, 4)]
    steps += [Step("smoke", party="rank 2", node="node2", phase="started")]
    watch, _ = watch_after(*((0.0, step) for step in steps))
    stage = watch.stages["smoke"]
    assert stage.progress_text() == "6 ranks"
    assert stage.by_phase() == [
        "rank 5 on node3: starting",
        "rank 2 on node2: importing torch",
        "ranks 0-1,3-4 on node[1-3]: timing collectives with a small and a large message",
    ]


def test_servers_and_workers_are_distinguished() -> None:
    steps = [
        Step("smoke", party="server 0", node="a", phase="imported"),
        Step("smoke", party="worker 0", node="b", phase="imported"),
        Step("smoke", party="worker 1", node="b", phase="imported"),
    ]
    watch, _ = watch_after(*((0.0, step) for step in steps))
    assert watch.stages["smoke"].progress_text() == "1 server and 2 workers"
    assert watch.stages["smoke"].by_phase() == ["server 0, workers 0-1 on a,b: connecting workers and servers"]


def test_a_finished_group_is_not_awaited() -> None:
    watch, _ = watch_after(
        (0.0, Step("smoke", party="rank 0", node="a", phase="done")),
        (0.0, Step("smoke", party="rank 1", node="b", phase="done")),
        (1.0, Step("smoke", party="rank 1")),
    )
    assert watch.stages["smoke"].by_phase() == ["rank 0 on a: nothing more"]
    assert watch.stages["smoke"].progress_text() == "2 ranks"


def test_an_interrupted_stage_has_a_reason() -> None:
    _, over = watch_after((0.0, Step("smoke")), (1.0, Step("smoke", ended=True, skipped="it was interrupted")))
    assert [stage.end_reason() for stage in over] == ["ended, it was interrupted"]
