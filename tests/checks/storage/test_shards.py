"""Data files against the ranks that read them."""

from __future__ import annotations

from collections.abc import Mapping

from preflight.model.findings import Severity, Status
from preflight.model.recording import FactRecord
from preflight_checks.probes.paths import Entry, PathState, path_state
from preflight_checks.storage.paths import too_few_data_files
from tests.checks.check_builders import claim, fact, facts, fleet, job, judge, local_fleet, one, statuses

PATH = "/data/{000..005}.tar"
MIB = 2**20


def path_at(node: str, files: Mapping[str, int], *, path: str = PATH, kind: str = "pattern") -> FactRecord:
    entries = [Entry(name, size) for name, size in files.items()]
    state = PathState(path, path, kind, entries=entries, listed=len(entries), size_bytes=sum(files.values()))
    return fact(path_state, node, state, params={"path": path})


def tars(count: int, size: int = MIB) -> dict[str, int]:
    return {f"{index:03}.tar": size for index in range(count)}


def test_fewer_tar_files_than_ranks_are_a_warning() -> None:
    seen = facts(path_at("node0", tars(6)), path_at("node1", tars(6)))
    found = one(judge(too_few_data_files, job(data_path=PATH, world_size=8), fleet(2), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "6 data files on node0, node1, fewer than 8 ranks" in found.message


def test_a_list_divided_by_trainers_makes_it_an_error() -> None:
    files = {f"part-{index}": MIB for index in range(3)}
    divided = job([claim("dataset_files_shared", True)], data_path="/data/train", ps_workers=4)
    seen = facts(path_at("node0", files, path="/data/train", kind="directory"))
    assert one(judge(too_few_data_files, divided, fleet(1), seen), Status.FAIL).severity is None
    enough = facts(path_at("node0", {**files, "part-3": MIB}, path="/data/train", kind="directory"))
    assert statuses(judge(too_few_data_files, divided, fleet(1), enough)) == {"pass"}


def test_fewer_than_the_loader_workers_are_information() -> None:
    loading = job(data_path=PATH, world_size=4, dataloader_workers=4)
    found = one(judge(too_few_data_files, loading, fleet(1), facts(path_at("node0", tars(6)))), Status.FAIL)
    assert found.severity is Severity.INFO and "4 loader workers" in found.message


def test_one_rank_with_much_more_than_another() -> None:
    seen = facts(path_at("node0", {**tars(4), "000.tar": 9 * MIB}))
    found = one(judge(too_few_data_files, job(data_path=PATH, world_size=4), fleet(1), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "rank 0 gets 9 MiB and rank 1 1 MiB" in found.message


def test_uneven_files_of_nodes() -> None:
    mine = {f"a-{index}": MIB for index in range(4)}
    yours = {f"b-{index}": MIB for index in range(8)}
    seen = facts(
        path_at("node0", mine, path="/d", kind="directory"), path_at("node1", yours, path="/d", kind="directory")
    )
    found = one(judge(too_few_data_files, job(data_path="/d", world_size=2), fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "4 MiB on node0 and 8 MiB on node1" in found.message
    assert statuses(judge(too_few_data_files, job(data_path="/d", world_size=2), local_fleet(2), seen)) == {"pass"}


def test_ordinary_data_passes() -> None:
    images = facts(path_at("node0", {f"{i}.jpg": i for i in range(3)}, path="/d", kind="directory"))
    assert statuses(judge(too_few_data_files, job(data_path="/d", world_size=8), fleet(1), images)) == {"pass"}
    few = facts(path_at("node0", tars(2)))
    drawn = job([claim("dataloader_workers", 1)], data_path=PATH, world_size=8)
    assert "fail" in statuses(judge(too_few_data_files, drawn, fleet(1), few))
    assert statuses(judge(too_few_data_files, job(data_path=PATH), fleet(1), few)) == {"not-applicable"}
    assert statuses(judge(too_few_data_files, job(data_path=PATH, world_size=8), fleet(1), facts())) == {"unknown"}
