"""Each node's own copies of the job's files."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from preflight.model.findings import Severity, Status
from preflight.model.job import InputFile, Job, Reference
from preflight.model.recording import FactRecord
from preflight_checks.context.copies import code_differs, job_files_differ, sizes_differ_between_nodes
from preflight_checks.probes.copies import Copies, Copy, copies
from tests.checks.check_builders import LAUNCH, TIMEOUT, fact, facts, fleet, judge, one, plan, statuses
from tests.checks.check_builders import job as built

ALL = (sizes_differ_between_nodes, job_files_differ, code_differs)
FILES = (
    InputFile("run/train.sh", "shell", "s" * 64, 100),
    InputFile("run/train.py", "python", "p" * 64, 100),
    InputFile("run/ds.json", "deepspeed", "d" * 64, 100),
)


def job(launcher: str = "torchrun", **values: Any) -> Job:
    span = replace(LAUNCH.span, path="run/train.sh")
    launch = replace(LAUNCH, launcher=launcher, program="run/train.py", span=span)
    reference = Reference("run/ds.json", "config", span, launch.scope)
    return replace(built(**values), launches=(launch,), files=FILES, references=(reference,))


def copy(name: str, sha: str = "", problem: str = "", **numbers: str) -> Copy:
    letter = {"train.sh": "s", "train.py": "p", "ds.json": "d"}[name]
    if problem:
        return Copy(name, "", problem)
    return Copy(name, f"/job/{name}", "", sha or letter * 64, 100, numbers)


def node(name: str, *changed: Copy, **more: Any) -> FactRecord:
    held = {item: copy(item) for item in ("train.sh", "train.py", "ds.json")}
    held.update({item.name: item for item in changed})
    return fact(copies, name, Copies("/job", list(held.values()), **more), context=True)


def test_files_are_searched_beside_the_start_script_and_below_the_root() -> None:
    asked = plan(job_files_differ, job(), fleet(2))
    assert len(asked) == 2 and asked[0].context
    assert asked[0].params["files"][1] == ("train.py", ("train.py", "run/train.py"))
    assert plan(job_files_differ, job(), fleet(1)) == []
    outside = replace(job(), files=(replace(FILES[1], path="lib/train.py"),))
    assert plan(job_files_differ, outside, fleet(2))[0].params["files"] == [("lib/train.py", ("lib/train.py",))]


def test_equal_copies_pass() -> None:
    same = facts(*(node(f"node{i}", code={"a.py": "1"}, code_hash="h", code_files=1) for i in range(3)))
    for check in ALL:
        assert statuses(judge(check, job(), fleet(3), same)) == {"pass"}, check.meta.id


def test_a_stale_training_script_is_an_error_on_its_node() -> None:
    seen = facts(node("node0"), node("node1"), node("node2", copy("train.py", "x" * 64)))
    found = one(judge(job_files_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is None and "differs from the one on" in found.message
    assert statuses(judge(sizes_differ_between_nodes, job(), fleet(3), seen)) == {"pass"}


def test_a_different_batch_size_is_reported_once_with_both_values() -> None:
    batch = {"train_micro_batch_size_per_gpu": "4", "gradient_accumulation_steps": "2"}
    odd = {**batch, "train_micro_batch_size_per_gpu": "8"}
    seen = facts(
        node("node0", copy("ds.json", **batch)),
        node("node1", copy("ds.json", **batch)),
        node("node2", copy("ds.json", "x" * 64, **odd)),
    )
    found = one(judge(sizes_differ_between_nodes, job(world_size=16), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",)
    assert "node2: 8; 2 nodes have 4" in found.message
    assert "8 x 2 x 16 = 256" in found.message and "4 x 2 x 16 = 128" in found.message
    assert statuses(judge(job_files_differ, job(world_size=16), fleet(3), seen)) == {"pass"}


def test_a_different_learning_rate_is_reported_for_the_file() -> None:
    seen = facts(*(node(f"node{i}", copy("ds.json", "xd"[i > 0] * 64, lr="1e-3" if i else "1e-4")) for i in range(3)))
    found = one(judge(job_files_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "lr is node0: 1e-4; 2 nodes have 1e-3" in found.message


def test_start_scripts_may_name_their_node() -> None:
    own = [
        node(f"node{i}", copy("train.sh", "abc"[i] * 64, **{"--node_rank": str(i), "NNODES": "3"})) for i in range(3)
    ]
    for check in (sizes_differ_between_nodes, code_differs):
        assert "fail" not in statuses(judge(check, job(), fleet(3), facts(*own)))
    linted = one(judge(job_files_differ, job(), fleet(3), facts(*own)), Status.FAIL)
    assert linted.severity is Severity.WARNING and linted.nodes == ("node0",)
    odd = node("node2", copy("train.sh", "c" * 64, NNODES="4"))
    found = one(judge(sizes_differ_between_nodes, job(), fleet(3), facts(own[0], own[1], odd)), Status.FAIL)
    assert "NNODES is node2: 4; 2 nodes have 3" in found.message


def test_a_start_script_that_differs_on_one_node_is_stale() -> None:
    seen = facts(node("node0"), node("node1"), node("node2", copy("train.sh", "x" * 64)))
    found = one(judge(job_files_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is Severity.WARNING and "train.sh" in found.message
    lost = facts(node("node0"), node("node1"), node("node2", copy("train.sh", problem="missing")))
    assert one(judge(job_files_differ, job(), fleet(3), lost), Status.FAIL).nodes == ("node2",)
    first = facts(node("node0", copy("train.sh", "x" * 64)), node("node1"), node("node2"))
    assert "linted" in one(judge(job_files_differ, job(), fleet(3), first), Status.FAIL).message


def test_other_nodes_need_no_start_script_of_a_launcher() -> None:
    missing = [copy("train.sh", problem="missing")]
    seen = facts(node("node0"), node("node1", *missing), node("node2", *missing))
    assert statuses(judge(job_files_differ, job("deepspeed"), fleet(3), seen)) == {"pass"}
    lost = facts(node("node0"), node("node1", copy("ds.json", problem="missing")))
    found = one(judge(job_files_differ, job("deepspeed"), fleet(2), lost), Status.FAIL)
    assert found.nodes == ("node1",) and "/job/ds.json" in found.remedy


def test_files_of_the_launcher_may_differ_on_other_nodes() -> None:
    odd = node("node1", copy("train.sh", "x" * 64, NNODES="4"))
    assert statuses(judge(sizes_differ_between_nodes, job("deepspeed"), fleet(2), facts(node("node0"), odd))) == {
        "pass"
    }
    missing = facts(node("node0"), node("node1", copy("train.py", problem="missing"), copy("ds.json", "x" * 64)))
    assert statuses(judge(job_files_differ, job("ray"), fleet(2), missing)) == {"pass"}


def test_nodes_agree_on_a_file_that_was_not_linted() -> None:
    seen = facts(*(node(f"node{i}", copy("train.py", "x" * 64)) for i in range(3)))
    found = one(judge(job_files_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "linted" in found.message and "all 3 nodes" in found.message


def test_a_directory_without_the_job_suggests_the_option() -> None:
    nothing = [copy(name, problem="missing") for name in ("train.sh", "train.py", "ds.json")]
    seen = facts(*(node(f"node{i}", *nothing) for i in range(2)))
    for check in ALL:
        said = one(judge(check, job(), fleet(2), seen), Status.UNKNOWN)
        assert "--directory" in said.message and not said.required
    blind = facts(*(fact(copies, f"node{i}", TIMEOUT, context=True) for i in range(2)))
    for check in ALL:
        assert statuses(judge(check, job(), fleet(2), blind)) == {"unknown"}


def test_code_beside_the_script() -> None:
    code = [{"a.py": "1", "b/c.py": "2", "train.py": "t"}, {"a.py": "1", "b/c.py": "3", "train.py": "other"}]
    seen = facts(*(node(f"node{i}", code=code[i == 2], code_hash=f"h{i == 2}", code_files=3) for i in range(3)))
    found = one(judge(code_differs, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "b/c.py" in found.message and "train.py" not in found.message
    large = facts(*(node(f"node{i}", code_hash=f"h{i == 2}", code_files=900) for i in range(3)))
    assert one(judge(code_differs, job(), fleet(3), large), Status.FAIL).nodes == ("node2",)
    cut = facts(*(node(f"node{i}", cut="there is more code") for i in range(2)))
    assert statuses(judge(code_differs, job(), fleet(2), cut)) == {"unknown"}
    commits = facts(*(node(f"node{i}", commit="ab"[i == 2] * 40, code_hash="h") for i in range(3)))
    assert one(judge(code_differs, job(), fleet(3), commits), Status.FAIL).severity is Severity.INFO
