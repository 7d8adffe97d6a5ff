"""Data on the nodes: it exists and is the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.probes.paths import Entry, PathState, Sample, path_state
from preflight_checks.storage.paths import data_content_differs, data_path_missing, shard_list_differs
from tests.checks.check_builders import (
    TIMEOUT,
    fact,
    facts,
    fleet,
    job,
    judge,
    local_fleet,
    one,
    plan,
    statuses,
)

PATH = "/data/train"
JOB = {"data_path": PATH}
SHARDS = {f"part-{i:03}": 100 for i in range(4)}


def folder(node: str, files: Mapping[str, int] = SHARDS, *, system: str = "lustre", path: str = PATH) -> FactRecord:
    entries = [Entry(name, size) for name, size in files.items()]
    state = PathState(path, path, "directory", file_system=system, entries=entries, listed=len(entries))
    return path_at(node, state_with_digest(state, files))


def state_with_digest(state: PathState, files: Mapping[str, int]) -> PathState:
    from dataclasses import replace

    return replace(state, digest=str(sorted(files.items())))


def path_at(node: str, state: PathState) -> FactRecord:
    return fact(path_state, node, state, params={"path": state.path})


def absent(node: str, problem: str = "missing", path: str = PATH) -> FactRecord:
    return path_at(node, PathState(path, path, "", problem, "No such file or directory"))


def test_paths_are_requested_in_the_job_context_but_not_urls() -> None:
    wanted = plan(data_path_missing, job(**JOB), fleet(2))
    assert [(r.node, r.context, r.required) for r in wanted] == [("node0", True, True), ("node1", True, True)]
    assert plan(data_path_missing, job(data_path="s3://bucket/train"), fleet(2)) == []
    assert len(plan(data_path_missing, job(data_path="/data/{000..127}.tar"), fleet(2))) == 2
    assert plan(data_path_missing, job(data_path="{DATA_DIR}/train"), fleet(2)) == []
    assert plan(data_path_missing, job(data_path="pipe:cat x.tar"), fleet(2)) == []


def test_models_on_disk_are_checked_but_not_hub_names() -> None:
    assert len(plan(data_path_missing, job(input_file="/data/vocab.json"), fleet(2))) == 2
    assert len(plan(data_path_missing, job(model_name="/models/llama"), fleet(2))) == 2
    assert plan(data_path_missing, job(model_name="meta-llama/Llama-2-7b"), fleet(2)) == []


def test_a_path_missing_on_one_node_names_it() -> None:
    found = one(
        judge(data_path_missing, job(**JOB), fleet(3), facts(folder("node0"), folder("node1"), absent("node2"))),
        Status.FAIL,
    )
    assert found.nodes == ("node2",) and PATH in found.message and found.severity is None


def test_a_relative_name_may_be_on_a_hub() -> None:
    nowhere = facts(*(absent(f"node{i}", path="wikitext") for i in range(2)))
    found = one(judge(data_path_missing, job(data_path="wikitext"), fleet(2), nowhere), Status.FAIL)
    assert found.severity is Severity.WARNING
    certain = facts(*(absent(f"node{i}") for i in range(2)))
    assert one(judge(data_path_missing, job(**JOB), fleet(2), certain), Status.FAIL).severity is None


def test_a_dangling_link_and_a_denied_path_are_distinguished() -> None:
    seen = facts(folder("node0"), absent("node1", "dangling"), absent("node2", "denied"))
    messages = [v.message for v in judge(data_path_missing, job(**JOB), fleet(3), seen) if v.status is Status.FAIL]
    assert any("dangling link" in m for m in messages) and any("may not be read" in m for m in messages)


def test_a_different_kind_is_an_error_and_file_system_a_warning() -> None:
    file = path_at("node1", PathState(PATH, PATH, "file", size_bytes=3, listed=1))
    found = one(judge(data_path_missing, job(**JOB), fleet(2), facts(folder("node0"), file)), Status.FAIL)
    assert "is a file on node1" in found.message
    local = facts(folder("node0"), folder("node1"), folder("node2", system="ext4"))
    found = one(judge(data_path_missing, job(**JOB), fleet(3), local), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node2",) and "ext4" in found.message


def test_local_file_systems_may_differ_but_exports_may_not() -> None:
    disks = facts(folder("node0", system="ext4"), folder("node1", system="xfs"))
    assert statuses(judge(data_path_missing, job(**JOB), fleet(2), disks)) == {"pass"}

    def served(node: str, source: str) -> FactRecord:
        return path_at(node, PathState(PATH, PATH, "directory", file_system="nfs4", source=source))

    other = facts(served("node0", "nas1:/a"), served("node1", "nas2:/a"), served("node2", "nas1:/b"))
    assert one(judge(data_path_missing, job(**JOB), fleet(3), other), Status.FAIL).nodes == ("node2",)


def test_missing_files_of_a_pattern_or_list() -> None:
    whole = PathState(PATH, PATH, "pattern", listed=4, digest="a")
    short = PathState(PATH, PATH, "pattern", listed=3, digest="b", absent=["03.tar"])
    found = one(
        judge(shard_list_differs, job(**JOB), fleet(2), facts(path_at("node0", whole), path_at("node1", short))),
        Status.FAIL,
    )
    assert found.nodes == ("node1",) and "names 03.tar, which does not exist on node1" in found.message
    nowhere = facts(path_at("node0", short), path_at("node1", short))
    assert one(judge(shard_list_differs, job(**JOB), fleet(2), nowhere), Status.FAIL).nodes == ("node0", "node1")


def test_too_many_files_are_not_compared() -> None:
    late = path_at("node1", PathState(PATH, PATH, "directory", listed=3, digest="x", hurried=True))
    verdicts = judge(shard_list_differs, job(**JOB), fleet(3), facts(folder("node0"), late, folder("node2")))
    assert statuses(verdicts) == {"unknown", "pass"} and not one(verdicts, Status.UNKNOWN).required


def holding(node: str, contents: Mapping[str, str], *, sizes: Mapping[str, int] | None = None) -> FactRecord:
    samples = [Sample(name, (sizes or {}).get(name, 100), digest, True) for name, digest in contents.items()]
    return path_at(node, PathState(PATH, PATH, "directory", samples=samples, listed=len(samples)))


SAME = {"a": "1", "b": "2"}


def test_different_content_of_equal_size_names_file_and_node() -> None:
    seen = facts(holding("node0", SAME), holding("node1", {**SAME, "b": "x"}), holding("node2", SAME))
    found = one(judge(data_content_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and found.severity is None and "b of /data/train on node1 differs" in found.message
    assert "(node0)" in found.remedy


def test_all_different_files_may_be_a_nodes_own_shards() -> None:
    seen = facts(holding("node0", SAME), holding("node1", {"a": "x", "b": "y"}), holding("node2", SAME))
    found = one(judge(data_content_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and found.nodes == ("node1",)
    vocabulary = job(input_file=PATH)
    assert one(judge(data_content_differs, vocabulary, fleet(3), seen), Status.FAIL).severity is None


def test_a_different_size_is_left_to_dat012() -> None:
    seen = facts(holding("node0", SAME), holding("node1", {**SAME, "b": "x"}, sizes={"b": 7}), holding("node2", SAME))
    assert statuses(judge(data_content_differs, job(**JOB), fleet(3), seen)) == {"pass"}


def test_unread_contents_are_unknown() -> None:
    cut = path_at("node1", PathState(PATH, PATH, "directory", sample_problem="reading took longer than 1.5 s"))
    verdicts = judge(data_content_differs, job(**JOB), fleet(2), facts(holding("node0", SAME), cut))
    assert statuses(verdicts) == {"unknown"} and "1.5 s" in verdicts[0].message
    assert statuses(judge(data_content_differs, job(**JOB), fleet(2), facts())) == {"unknown"}
    assert statuses(judge(data_content_differs, job(), fleet(2), facts())) == {"not-applicable"}
    assert statuses(judge(data_content_differs, job(**JOB), local_fleet(2), facts())) == {"not-applicable"}


def test_a_hanging_path_is_unknown_and_required() -> None:
    verdicts = judge(
        data_path_missing, job(**JOB), fleet(1), facts(fact(path_state, "node0", TIMEOUT, params=JOB_PATH))
    )
    assert one(verdicts, Status.UNKNOWN).required
    nowhere = fact(path_state, "node0", Unavailable("context", "no directory is known"), params=JOB_PATH)
    assert not one(judge(data_path_missing, job(**JOB), fleet(1), facts(nowhere)), Status.UNKNOWN).required


JOB_PATH = {"path": PATH}


def test_a_missing_shard_names_its_node() -> None:
    short = {name: size for name, size in SHARDS.items() if name != "part-002"}
    seen = facts(folder("node0"), folder("node1", short), folder("node2"))
    found = one(judge(shard_list_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "part-002 is missing" in found.message and found.severity is None


def test_a_truncated_shard_has_both_sizes() -> None:
    seen = facts(folder("node0"), folder("node1", {**SHARDS, "part-001": 7}), folder("node2"))
    found = one(judge(shard_list_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert "part-001 (7 instead of 100 bytes)" in found.message


def test_an_empty_directory_is_reported_once() -> None:
    seen = facts(folder("node0"), folder("node1", {}), folder("node2"))
    found = one(judge(shard_list_differs, job(**JOB), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "empty" in found.message


def test_own_shards_on_each_node_are_at_most_a_warning() -> None:
    seen = facts(*(folder(f"node{i}", {f"{i}-{k}": 1 for k in range(4)}) for i in range(2)))
    verdicts = judge(shard_list_differs, job(**JOB), fleet(2), seen)
    assert {v.severity for v in verdicts} == {Severity.WARNING}


def test_unreadable_files_are_named() -> None:
    state = PathState(PATH, PATH, "directory", entries=[Entry("a", 1)], unreadable=["b"], listed=1, digest="x")
    found = one(judge(shard_list_differs, job(**JOB), fleet(1), facts(path_at("node0", state))), Status.FAIL)
    assert "b of /data/train cannot be read on node0" in found.message


def test_equal_lists_pass_and_no_paths_are_not_applicable() -> None:
    assert statuses(judge(shard_list_differs, job(**JOB), fleet(2), facts(folder("node0"), folder("node1")))) == {
        "pass"
    }
    assert statuses(judge(shard_list_differs, job(), fleet(2), facts())) == {"not-applicable"}
    assert statuses(judge(data_path_missing, job(), fleet(2), facts())) == {"not-applicable"}
