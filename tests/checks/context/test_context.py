"""Each node's own copies of the job's files."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Claim, InputFile, Job, Reference, Unresolved
from preflight.model.recording import FactRecord, Unavailable
from preflight.runner.preparation import IN_CONTAINER, OUTSIDE
from preflight_checks.context.copies import (
    code_differs,
    framework_comes_slowly,
    framework_imports_slowly,
    job_files_differ,
    ranks_cannot_start,
    sizes_differ_between_nodes,
)
from preflight_checks.context.environment import (
    communication_variables_differ,
    node_identities_collide,
    protocol_differences,
    roles_of_nodes_do_not_fit,
    tf_configs_do_not_fit,
)
from preflight_checks.context.launcher_access import (
    accounts_differ,
    launcher_cannot_log_in,
    launcher_tool_missing,
    remote_launches,
    variables_not_handed_on,
)
from preflight_checks.plans import group_of, groups
from preflight_checks.probes.copies import Copies, Copy, copies
from preflight_checks.probes.environment import (
    COLLECTED,
    Environment,
    Login,
    Logins,
    SettingsFile,
    Tool,
    Tools,
    environment,
    logins,
    tools,
)
from preflight_checks.probes.packages import Installed, installed
from preflight_checks.probes.start_cost import ImportCost, ReadCost, import_cost, read_cost
from preflight_checks.software.packages import library_paths_differ, settings_file_misread
from tests.checks.check_builders import (
    LAUNCH,
    TIMEOUT,
    claim,
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
from tests.checks.check_builders import job as built

ALL = (sizes_differ_between_nodes, job_files_differ, code_differs)
FILES = (
    InputFile("run/train.sh", "shell", "s" * 64, 100),
    InputFile("run/train.py", "python", "p" * 64, 100),
    InputFile("run/ds.json", "deepspeed", "d" * 64, 100),
)


def copies_job(launcher: str = "torchrun", **values: Any) -> Job:
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
    asked = plan(job_files_differ, copies_job(), fleet(2))
    assert len(asked) == 2 and asked[0].context
    assert asked[0].params["files"][1] == ("train.py", ("train.py", "run/train.py"))
    assert plan(job_files_differ, copies_job(), fleet(1)) == []
    outside = replace(copies_job(), files=(replace(FILES[1], path="lib/train.py"),))
    assert plan(job_files_differ, outside, fleet(2))[0].params["files"] == [("lib/train.py", ("lib/train.py",))]


def test_equal_copies_pass() -> None:
    same = facts(*(node(f"node{i}", code={"a.py": "1"}, code_hash="h", code_files=1) for i in range(3)))
    for check in ALL:
        assert statuses(judge(check, copies_job(), fleet(3), same)) == {"pass"}, check.meta.id


def test_a_stale_training_script_is_an_error_on_its_node() -> None:
    seen = facts(node("node0"), node("node1"), node("node2", copy("train.py", "x" * 64)))
    found = one(judge(job_files_differ, copies_job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is None and "differs from the copy on" in found.message
    assert statuses(judge(sizes_differ_between_nodes, copies_job(), fleet(3), seen)) == {"pass"}


def test_a_different_batch_size_is_reported_once_with_both_values() -> None:
    batch = {"train_micro_batch_size_per_gpu": "4", "gradient_accumulation_steps": "2"}
    odd = {**batch, "train_micro_batch_size_per_gpu": "8"}
    seen = facts(
        node("node0", copy("ds.json", **batch)),
        node("node1", copy("ds.json", **batch)),
        node("node2", copy("ds.json", "x" * 64, **odd)),
    )
    found = one(judge(sizes_differ_between_nodes, copies_job(world_size=16), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",)
    assert "node2: 8; 2 nodes have 4" in found.message
    assert "8 x 2 x 16 = 256" in found.message and "4 x 2 x 16 = 128" in found.message
    assert statuses(judge(job_files_differ, copies_job(world_size=16), fleet(3), seen)) == {"pass"}


def test_a_different_learning_rate_is_reported_for_the_file() -> None:
    seen = facts(*(node(f"node{i}", copy("ds.json", "xd"[i > 0] * 64, lr="1e-3" if i else "1e-4")) for i in range(3)))
    found = one(judge(job_files_differ, copies_job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "lr is node0: 1e-4; 2 nodes have 1e-3" in found.message


def test_start_scripts_may_name_their_node() -> None:
    own = [
        node(f"node{i}", copy("train.sh", "abc"[i] * 64, **{"--node_rank": str(i), "NNODES": "3"})) for i in range(3)
    ]
    for check in (sizes_differ_between_nodes, code_differs):
        assert "fail" not in statuses(judge(check, copies_job(), fleet(3), facts(*own)))
    linted = one(judge(job_files_differ, copies_job(), fleet(3), facts(*own)), Status.FAIL)
    assert linted.severity is Severity.WARNING and linted.nodes == ("node0",)
    odd = node("node2", copy("train.sh", "c" * 64, NNODES="4"))
    found = one(judge(sizes_differ_between_nodes, copies_job(), fleet(3), facts(own[0], own[1], odd)), Status.FAIL)
    assert "NNODES is node2: 4; 2 nodes have 3" in found.message


def test_a_start_script_that_differs_on_one_node_is_stale() -> None:
    seen = facts(node("node0"), node("node1"), node("node2", copy("train.sh", "x" * 64)))
    found = one(judge(job_files_differ, copies_job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is Severity.WARNING and "train.sh" in found.message
    lost = facts(node("node0"), node("node1"), node("node2", copy("train.sh", problem="missing")))
    assert one(judge(job_files_differ, copies_job(), fleet(3), lost), Status.FAIL).nodes == ("node2",)
    first = facts(node("node0", copy("train.sh", "x" * 64)), node("node1"), node("node2"))
    assert "linted" in one(judge(job_files_differ, copies_job(), fleet(3), first), Status.FAIL).message


def test_other_nodes_need_no_start_script_of_a_launcher() -> None:
    missing = [copy("train.sh", problem="missing")]
    seen = facts(node("node0"), node("node1", *missing), node("node2", *missing))
    assert statuses(judge(job_files_differ, copies_job("deepspeed"), fleet(3), seen)) == {"pass"}
    lost = facts(node("node0"), node("node1", copy("ds.json", problem="missing")))
    found = one(judge(job_files_differ, copies_job("deepspeed"), fleet(2), lost), Status.FAIL)
    assert found.nodes == ("node1",) and "/job/ds.json" in found.remedy


def test_files_of_the_launcher_may_differ_on_other_nodes() -> None:
    odd = node("node1", copy("train.sh", "x" * 64, NNODES="4"))
    assert statuses(
        judge(sizes_differ_between_nodes, copies_job("deepspeed"), fleet(2), facts(node("node0"), odd))
    ) == {"pass"}
    missing = facts(node("node0"), node("node1", copy("train.py", problem="missing"), copy("ds.json", "x" * 64)))
    assert statuses(judge(job_files_differ, copies_job("ray"), fleet(2), missing)) == {"pass"}


def test_nodes_agree_on_a_file_that_was_not_linted() -> None:
    seen = facts(*(node(f"node{i}", copy("train.py", "x" * 64)) for i in range(3)))
    found = one(judge(job_files_differ, copies_job(), fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.WARNING and "linted" in found.message and "all 3 nodes" in found.message


def test_a_directory_without_the_job_suggests_the_option() -> None:
    nothing = [copy(name, problem="missing") for name in ("train.sh", "train.py", "ds.json")]
    seen = facts(*(node(f"node{i}", *nothing) for i in range(2)))
    for check in ALL:
        said = one(judge(check, copies_job(), fleet(2), seen), Status.UNKNOWN)
        assert "--directory" in said.message and not said.required
    blind = facts(*(fact(copies, f"node{i}", TIMEOUT, context=True) for i in range(2)))
    for check in ALL:
        assert statuses(judge(check, copies_job(), fleet(2), blind)) == {"unknown"}


def test_code_beside_the_script() -> None:
    code = [{"a.py": "1", "b/c.py": "2", "train.py": "t"}, {"a.py": "1", "b/c.py": "3", "train.py": "other"}]
    seen = facts(*(node(f"node{i}", code=code[i == 2], code_hash=f"h{i == 2}", code_files=3) for i in range(3)))
    found = one(judge(code_differs, copies_job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "b/c.py" in found.message and "train.py" not in found.message
    large = facts(*(node(f"node{i}", code_hash=f"h{i == 2}", code_files=900) for i in range(3)))
    assert one(judge(code_differs, copies_job(), fleet(3), large), Status.FAIL).nodes == ("node2",)
    cut = facts(*(node(f"node{i}", cut="there is more code") for i in range(2)))
    assert statuses(judge(code_differs, copies_job(), fleet(2), cut)) == {"unknown"}
    commits = facts(*(node(f"node{i}", commit="ab"[i == 2] * 40, code_hash="h") for i in range(3)))
    assert one(judge(code_differs, copies_job(), fleet(3), commits), Status.FAIL).severity is Severity.INFO


# Variables that must agree between nodes, and others that must differ.


NCCL_JOB = job(backend="nccl", nodes=4)


def environment_node(name: str, digests: dict[str, str] | None = None, conf: str = "", **variables: str) -> FactRecord:
    files = [SettingsFile("/etc/nccl.conf", settings=dict([conf.split("=")]))] if conf else []
    return fact(environment, name, Environment(variables, digests or {}, files), context=True)


def test_both_environments_are_requested_from_every_node() -> None:
    asked = plan(communication_variables_differ, job(backend="nccl", env_WANDB_API_KEY="****"), fleet(2))
    assert [(request.node, request.context) for request in asked] == [
        ("node0", True),
        ("node1", True),
        ("node0", False),
        ("node1", False),
    ]
    assert all(request.params["hashed"] == ["WANDB_API_KEY"] and "run_key" in request.params for request in asked)
    assert plan(communication_variables_differ, NCCL_JOB, fleet(1)) == []


def test_a_different_algorithm_on_one_node_is_an_error() -> None:
    seen = facts(
        environment_node("node0", NCCL_ALGO="Ring"),
        environment_node("node1", NCCL_ALGO="ring"),
        environment_node("node2", NCCL_ALGO="Tree"),
    )
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is Severity.ERROR
    assert "NCCL_ALGO is node2: Tree, but Ring on 2 others" in found.message


def test_the_environment_overrides_nccl_files() -> None:
    seen = facts(environment_node("node0"), environment_node("node1", conf="NCCL_PROTO=LL"), environment_node("node2"))
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "LL (/etc/nccl.conf)" in found.message
    assert "/etc/nccl.conf" in found.remedy
    same = facts(
        *(environment_node(f"node{i}", conf="NCCL_PROTO=LL" if i == 1 else "", NCCL_PROTO="Simple") for i in range(3))
    )
    assert statuses(judge(communication_variables_differ, NCCL_JOB, fleet(3), same)) == {"pass"}


def test_a_variable_set_to_its_default_is_not_a_difference() -> None:
    seen = facts(environment_node("node0"), environment_node("node1", NCCL_IB_DISABLE="0"), environment_node("node2"))
    assert statuses(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen)) == {"pass"}


@pytest.mark.parametrize(
    "variables",
    [
        {"NCCL_SOCKET_IFNAME": "ib0"},
        {"CUDA_VISIBLE_DEVICES": "1"},
        {"NCCL_DEBUG_FILE": "/tmp/node1.log"},
        {"TRAINING_ROLE": "PSERVER", "PADDLE_PORT": "6170"},
        {"CUDA_VERSION": "12.4"},
        {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1"},
        {"HOROVOD_LOCAL_SIZE": "4"},
        {"SOMETHING_ELSE": "1"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_variables_that_may_differ_are_not_reported(variables: dict[str, str]) -> None:
    seen = facts(environment_node("node0"), environment_node("node1", **variables), environment_node("node2"))
    assert statuses(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen)) == {"pass"}


def test_variables_that_differ_on_one_node_are_one_finding() -> None:
    seen = facts(
        environment_node("node0"),
        environment_node("node1", NCCL_IB_TC="106", NCCL_IB_SL="3", OMP_NUM_THREADS="1"),
        environment_node("node2"),
    )
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.WARNING
    assert all(name in found.message for name in ("NCCL_IB_TC", "NCCL_IB_SL", "OMP_NUM_THREADS"))


def test_with_two_nodes_neither_is_odd() -> None:
    seen = facts(environment_node("node0", NCCL_ALGO="Ring"), environment_node("node1", NCCL_ALGO="Tree"))
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(2), seen), Status.FAIL)
    assert set(found.nodes) == {"node0", "node1"}


def test_nccl_variables_are_information_without_nccl() -> None:
    seen = facts(environment_node("node0"), environment_node("node1", NCCL_ALGO="Tree"), environment_node("node2"))
    found = one(judge(communication_variables_differ, job(backend="gloo"), fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.INFO


@pytest.mark.parametrize(
    ("name", "value", "severity"),
    [
        ("TORCH_GLOO_LAZY_INIT", "1", Severity.ERROR),
        ("GLOO_DEVICE_TRANSPORT", "TCP_TLS", Severity.ERROR),
        ("TORCH_DISTRIBUTED_DEBUG", "detail", Severity.ERROR),
        ("TORCH_DISTRIBUTED_DEBUG", "INFO", Severity.INFO),
        ("ATEN_CPU_CAPABILITY", "default", Severity.WARNING),
        ("MKL_CBWR", "COMPATIBLE", Severity.WARNING),
    ],
)
def test_variables_of_torch_that_differ_on_one_node(name: str, value: str, severity: Severity) -> None:
    stated = job(backend="gloo")
    seen = facts(environment_node("node0"), environment_node("node1"), environment_node("node2", **{name: value}))
    found = one(judge(communication_variables_differ, stated, fleet(3), seen), Status.FAIL)
    assert found.severity is severity and found.nodes == ("node2",)
    broken = {name: ("node2",)} if severity is Severity.ERROR else {}
    assert protocol_differences(stated, seen) == broken
    assert any(name == pattern or name.startswith(pattern.rstrip("*")) for pattern in COLLECTED)


def test_torch_s_own_defaults_are_no_difference() -> None:
    seen = facts(
        environment_node("node0"),
        environment_node("node1", TORCH_DISTRIBUTED_DEBUG="OFF", TORCH_GLOO_LAZY_INIT="0"),
        environment_node("node2"),
    )
    assert statuses(judge(communication_variables_differ, job(backend="gloo"), fleet(3), seen)) == {"pass"}


def test_variables_set_by_the_job_are_not_compared() -> None:
    seen = facts(*(environment_node(f"node{i}", NCCL_ALGO="Ring" if i else "Tree") for i in range(3)))
    assert statuses(
        judge(communication_variables_differ, job(backend="nccl", env_NCCL_ALGO="Ring"), fleet(3), seen)
    ) == {"pass"}


def test_the_master_may_call_itself_localhost() -> None:
    seen = facts(
        environment_node("node0", MASTER_ADDR="localhost"),
        *(environment_node(f"node{i}", MASTER_ADDR="job-0") for i in (1, 2)),
    )
    assert statuses(judge(communication_variables_differ, job(backend="gloo"), fleet(3), seen)) == {"pass"}
    two = facts(environment_node("node0"), *(environment_node(f"node{i}", MASTER_ADDR=f"host{i // 2}") for i in (1, 2)))
    assert one(judge(communication_variables_differ, job(), fleet(3), two), Status.FAIL).severity is Severity.ERROR
    flagged = job((claim("master_addr", "host0"),))
    assert statuses(judge(communication_variables_differ, flagged, fleet(3), two)) == {"pass"}


def test_secrets_are_compared_by_their_hashes_and_never_shown() -> None:
    seen = facts(*(environment_node(f"node{i}", {"NCCL_AUTH_TOKEN": "aa" if i else "bb"}) for i in range(3)))
    found = one(judge(communication_variables_differ, NCCL_JOB, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node0",) and "aa" not in str(found) and "not shown" in found.message


def test_without_the_context_the_nodes_own_environments_are_compared() -> None:
    gone = [fact(environment, f"node{i}", Unavailable("context", "no interpreter"), context=True) for i in range(3)]
    bare = [fact(environment, f"node{i}", Environment({"NCCL_ALGO": "Tree"} if i else {})) for i in range(3)]
    said = judge(communication_variables_differ, NCCL_JOB, fleet(3), facts(*gone, *bare))
    assert one(said, Status.FAIL).nodes == ("node0",)
    assert one(said, Status.UNKNOWN).message == "no interpreter"
    assert statuses(judge(communication_variables_differ, NCCL_JOB, fleet(3), facts(*gone))) == {"unknown"}


def test_an_unread_variable_is_at_most_information() -> None:
    seen = facts(*(environment_node(f"node{i}", BATCH_SIZE=str(8 + (i == 2)), NODE_RANK="0") for i in range(3)))
    found = one(judge(communication_variables_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.INFO and found.nodes == ("node2",)
    assert statuses(judge(node_identities_collide, job(), fleet(3), seen)) == {"pass"}
    reading = job((claim("dataloader_batch_size", Unresolved("$BATCH_SIZE"), "--batch-size $BATCH_SIZE"),))
    found = one(judge(communication_variables_differ, reading, fleet(3), seen), Status.FAIL)
    assert found.severity is Severity.ERROR


RANKED = job((claim("node_rank", Unresolved("$NODE_RANK is set by the caller"), "--node_rank=$NODE_RANK"),))


def test_two_nodes_with_one_identity_collide() -> None:
    seen = facts(*(environment_node(f"node{i}", NODE_RANK=str(min(i, 1))) for i in range(3)))
    found = one(judge(node_identities_collide, RANKED, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node1", "node2")
    own = facts(*(environment_node(f"node{i}", NODE_RANK=str(i)) for i in range(3)))
    assert statuses(judge(node_identities_collide, RANKED, fleet(3), own)) == {"pass"}
    assert statuses(judge(node_identities_collide, job(env_NODE_RANK="0"), fleet(3), seen)) == {"pass"}
    assert statuses(judge(node_identities_collide, RANKED, local_fleet(3), seen)) == {"not-applicable"}
    blind = facts(*(fact(environment, f"node{i}", Unavailable("denied", "no")) for i in range(3)))
    assert statuses(judge(node_identities_collide, job(), fleet(3), blind)) == {"unknown"}


def test_equal_host_ids_matter_only_to_nccl() -> None:
    seen = facts(*(environment_node(f"node{i}", NCCL_HOSTID="cloud") for i in range(2)))
    assert statuses(judge(node_identities_collide, NCCL_JOB, fleet(2), seen)) == {"fail"}
    assert statuses(judge(node_identities_collide, job(backend="gloo"), fleet(2), seen)) == {"pass"}


def test_the_table_is_complete() -> None:
    assert {group.kind for group in groups()} == {"agree", "distinct", "own"}
    assert {group.job_kinds for group in groups()} <= {"nccl", "ps", "ranks", "torch", "any"}
    assert all(group.reason for group in groups())
    found = {name: group_of(name) for name in ("NCCL_ALGO", "NCCL_TOPO_FILE", "NCCL_ANYTHING_NEW", "HOME")}
    assert [group and group.kind for group in found.values()] == ["agree", "own", "agree", None]


# How launchers reach the other nodes.


def access_job(launcher: str = "deepspeed", *claims: Claim, wrappers: tuple[str, ...] = (), **values: object) -> Job:
    launch = replace(LAUNCH, launcher=launcher, wrappers=wrappers)
    return replace(built(claims, **values), launches=(launch,))


def exported(name: str, value: str = "1") -> Claim:
    return replace(claim(f"env.{name}", value), source="environment")


def plain(name: str, **variables: str) -> FactRecord:
    return fact(environment, name, Environment(variables, user="alice", uid=1001))


BATCH = plain("node0", SLURM_JOB_ID="7")


def test_launchers_that_log_in() -> None:
    def by(job: Job) -> list[str]:
        return [way.by for way in remote_launches(job)]

    assert by(access_job()) == ["deepspeed (pdsh)"]
    assert by(access_job(multinode_launcher="openmpi")) == ["deepspeed (mpirun)"]
    assert (
        by(access_job(multinode_launcher="slurm"))
        == by(access_job(each_node_itself=True))
        == by(access_job(nodes=1))
        == []
    )
    assert by(access_job("torchrun")) == by(access_job("torchrun", wrappers=("srun",))) == []
    assert by(access_job("torchrun", wrappers=("pdsh",))) == ["pdsh"]
    assert by(access_job("mpirun")) == ["mpirun"] and by(access_job("python", wrappers=("horovodrun",))) == [
        "horovodrun"
    ]
    assert by(access_job("accelerate")) == [] and by(access_job("accelerate", multinode_launcher="pdsh")) == [
        "deepspeed (pdsh)"
    ]
    batch = replace(claim("nodes", 4), source="slurm", scope=replace(LAUNCH.scope, launch=""))
    assert by(access_job("mpirun", batch)) == [] and by(access_job("deepspeed", batch)) == ["deepspeed (pdsh)"]


def test_logins_use_the_names_of_the_hostfile() -> None:
    (asked,) = plan(
        launcher_cannot_log_in, access_job("deepspeed", claim("hosts", ("node0", "NODE1.", "node2"))), fleet(4)
    )
    assert asked.node == "node0" and asked.params["targets"] == ("NODE1.", "node2", "node3")
    assert plan(launcher_cannot_log_in, access_job("torchrun"), fleet(4)) == []
    assert plan(launcher_cannot_log_in, access_job(), local_fleet(4)) == []
    assert plan(launcher_cannot_log_in, access_job(), fleet(3, node0="no route")) == []
    (some,) = plan(launcher_cannot_log_in, access_job(), fleet(3, node2="down"))
    assert some.params["targets"] == ("node1",)
    (many,) = plan(launcher_cannot_log_in, access_job(), fleet(300))
    assert len(many.params["targets"]) <= 64 and many.params["targets"][-1] > "node29"


def test_a_login_prompt_is_an_error_if_the_job_starts_on_the_first_node() -> None:
    said = Login("node2", 255, "alice@node2: Permission denied (publickey).")
    seen = fact(logins, "node0", Logins([Login("node1", 0), said]))
    unsure = one(judge(launcher_cannot_log_in, access_job(), fleet(3), facts(seen)), Status.FAIL)
    assert unsure.severity is Severity.WARNING and unsure.nodes == ("node2",) and "Permission denied" in unsure.message
    sure = one(judge(launcher_cannot_log_in, access_job(), fleet(3), facts(seen, BATCH)), Status.FAIL)
    assert sure.severity is None and "authorized_keys" in sure.remedy


def test_one_reason_on_many_hosts_is_one_finding() -> None:
    denied = [Login(f"node{i}", 255, f"root@node{i}: Permission denied (publickey).") for i in (1, 2)]
    silent = Login("node3", None)
    said = judge(
        launcher_cannot_log_in, access_job(), fleet(4), facts(fact(logins, "node0", Logins([*denied, silent])))
    )
    failing = [verdict for verdict in said if verdict.status is Status.FAIL]
    assert [verdict.nodes for verdict in failing] == [("node1", "node2"), ("node3",)]
    assert "no answer in time" in failing[1].message
    unknown_key = [Login("node1", 255, "Host key verification failed.")]
    found = one(
        judge(launcher_cannot_log_in, access_job(), fleet(2), facts(fact(logins, "node0", Logins(unknown_key)))),
        Status.FAIL,
    )
    assert "host key" in found.remedy


def test_logins_that_could_not_be_tried_are_unknown() -> None:
    untried = facts(fact(logins, "node0", Logins([Login("node1", 0)], ["node2"])))
    assert statuses(judge(launcher_cannot_log_in, access_job(), fleet(3), untried)) == {"unknown", "pass"}
    absent = facts(fact(logins, "node0", Unavailable("missing", "`ssh` is not on PATH")))
    assert statuses(judge(launcher_cannot_log_in, access_job(), fleet(3), absent)) == {"unknown"}
    assert statuses(judge(launcher_cannot_log_in, access_job(), fleet(3, node0="down"), facts())) == {"unknown"}
    assert statuses(judge(launcher_cannot_log_in, access_job("torchrun"), fleet(3), facts())) == {"not-applicable"}


def tool(node: str, name: str, path: str = "", context: bool = False, **more: object) -> FactRecord:
    return fact(tools, node, Tools([Tool(name, path, **more)], "/usr/bin"), context=context)  # type: ignore[arg-type]


def test_each_node_gets_requests_for_the_tools_it_needs() -> None:
    over_mpi = plan(launcher_tool_missing, access_job(multinode_launcher="openmpi"), fleet(2))
    assert [(r.node, r.params["names"]) for r in over_mpi] == [
        ("node0", ("mpirun", "ssh")),
        ("node1", ("orted|prted",)),
    ]
    own = plan(launcher_tool_missing, access_job("torchrun"), fleet(2))
    assert [(r.node, r.params["names"], r.context) for r in own] == [(f"node{i}", ("torchrun",), True) for i in (0, 1)]
    module = replace(LAUNCH, span=replace(LAUNCH.span, snippet="python -m torch.distributed.run train.py"))
    assert plan(launcher_tool_missing, replace(built(), launches=(module,)), fleet(2)) == []


def test_a_tool_missing_on_one_node_is_an_error() -> None:
    seen = [tool(f"node{i}", "torchrun", "/env/bin/torchrun" if i else "", context=True) for i in range(3)]
    found = one(judge(launcher_tool_missing, access_job("torchrun"), fleet(3), facts(*seen)), Status.FAIL)
    assert found.nodes == ("node0",) and found.severity is None and "PATH=/usr/bin" in found.evidence[0].observed


def test_a_tool_missing_everywhere_is_a_warning() -> None:
    seen = [tool(f"node{i}", "torchrun", context=True) for i in range(3)]
    found = one(judge(launcher_tool_missing, access_job("torchrun"), fleet(3), facts(*seen)), Status.FAIL)
    assert found.severity is Severity.WARNING and len(found.nodes) == 3


def test_a_missing_pdsh_is_an_error_in_a_batch_job() -> None:
    lacking = facts(fact(tools, "node0", Tools([Tool("pdsh"), Tool("ssh", "/usr/bin/ssh")], "/usr/bin")))
    assert one(judge(launcher_tool_missing, access_job(), fleet(2), lacking), Status.FAIL).severity is Severity.WARNING
    sure = facts(*lacking.records, BATCH)
    assert one(judge(launcher_tool_missing, access_job(), fleet(2), sure), Status.FAIL).severity is None


def test_a_slow_tool_and_one_of_another_version() -> None:
    late = tool("node0", "torchrun", "/t", context=True, problem="`torchrun` did not end within 3 s")
    assert "unknown" in statuses(judge(launcher_tool_missing, access_job("torchrun"), fleet(2), facts(late)))
    mpi = access_job(multinode_launcher="openmpi")
    held = [tool(f"node{i}", "orted|prted", "/usr/bin/orted", version=f"orted {4 + (i == 3)}.1") for i in (1, 2, 3)]
    found = one(judge(launcher_tool_missing, mpi, fleet(4), facts(*held)), Status.FAIL)
    assert found.nodes == ("node3",) and "5.1" in found.message and found.severity is Severity.WARNING


def test_variables_that_the_launcher_does_not_forward() -> None:
    ours = access_job("deepspeed", exported("GLOO_SOCKET_IFNAME", "eth0"), exported("NCCL_DEBUG"), exported("MY_NAME"))
    seen = facts(plain("node0"), plain("node1", GLOO_SOCKET_IFNAME="eth0"), plain("node2"))
    found = one(judge(variables_not_handed_on, ours, fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "GLOO_SOCKET_IFNAME" in found.message and ".deepspeed_env" in found.remedy
    file = SettingsFile("/home/alice/.deepspeed_env", settings={"GLOO_SOCKET_IFNAME": ""})
    first = fact(environment, "node0", Environment({}, export_files=[file]))
    assert statuses(judge(variables_not_handed_on, ours, fleet(3), facts(first, plain("node2")))) == {"pass"}


def test_mpirun_forwards_named_variables_and_horovodrun_all() -> None:
    claims = (exported("UCX_TLS", "rc"), exported("OMP_NUM_THREADS", "8"))
    told = claim("passed_variables", ("UCX_TLS",))
    seen = facts(plain("node0"), plain("node1"))
    ours = access_job("mpirun", *claims, told, mpi_implementation="openmpi")
    found = one(judge(variables_not_handed_on, ours, fleet(2), seen), Status.FAIL)
    assert "-x OMP_NUM_THREADS" in found.remedy.replace("Add", "") and "UCX_TLS" not in found.message
    every = access_job("python", *claims, wrappers=("horovodrun",))
    assert statuses(judge(variables_not_handed_on, every, fleet(2), seen)) == {"not-applicable"}
    blind = facts(*(fact(environment, f"node{i}", Unavailable("denied", "no")) for i in range(2)))
    assert statuses(judge(variables_not_handed_on, ours, fleet(2), blind)) == {"unknown"}


def test_accounts() -> None:
    other = fact(environment, "node2", Environment({}, user="alice", uid=1003))
    found = one(
        judge(accounts_differ, access_job(), fleet(3), facts(plain("node0"), plain("node1"), other)), Status.FAIL
    )
    assert found.nodes == ("node2",) and "alice (1003)" in found.message
    assert statuses(judge(accounts_differ, access_job(), fleet(2), facts(plain("node0"), plain("node1")))) == {"pass"}
    assert statuses(judge(accounts_differ, access_job(), fleet(2), facts())) == {"unknown"}
    assert statuses(judge(accounts_differ, access_job(), local_fleet(2), facts())) == {"not-applicable"}


# Roles in the nodes' own environments, library paths, and settings files.


LISTS = {
    "PADDLE_PSERVERS_IP_PORT_LIST": "10.0.0.1:6170,10.0.0.2:6170",
    "PADDLE_TRAINER_ENDPOINTS": "10.0.0.3:6171,10.0.0.4:6171",
    "PADDLE_TRAINERS_NUM": "2",
}
PS = job(ps_mode=True)


def participants_node(index: int, **variables: str) -> FactRecord:
    return fact(environment, f"node{index}", Environment({k: v for k, v in variables.items() if v}))


def server(index: int, **changed: str) -> FactRecord:
    own = {"TRAINING_ROLE": "PSERVER", "POD_IP": f"10.0.0.{index + 1}", "PADDLE_PORT": "6170"}
    return participants_node(index, **{**LISTS, **own, **changed})


def trainer(index: int, **changed: str) -> FactRecord:
    own = {"TRAINING_ROLE": "TRAINER", "POD_IP": f"10.0.0.{index + 1}", "PADDLE_TRAINER_ID": str(index - 2)}
    own["PADDLE_CURRENT_ENDPOINT"] = f"10.0.0.{index + 1}:6171"
    return participants_node(index, **{**LISTS, **own, **changed})


def test_roles_that_fit_pass() -> None:
    fitting = facts(server(0), server(1), trainer(2), trainer(3))
    assert statuses(judge(roles_of_nodes_do_not_fit, PS, fleet(4), fitting)) == {"pass"}


@pytest.mark.parametrize(
    ("index", "changed", "words", "nodes"),
    [
        (1, {"PADDLE_PORT": "6190"}, "10.0.0.2:6190", {"node1"}),
        (1, {"TRAINING_ROLE": "SERVER"}, "PSERVER", {"node1"}),
        (0, {"PADDLE_PSERVERS_IP_PORT_LIST": ""}, "cannot find the servers", {"node0"}),
        (3, {"PADDLE_TRAINER_ID": "2"}, "must be below 2", {"node3"}),
        (3, {"PADDLE_TRAINER_ID": "x"}, "must be below 2", {"node3"}),
        (3, {"PADDLE_CURRENT_ENDPOINT": "10.0.0.9:6171"}, "entry 1", {"node3"}),
        (3, {"PADDLE_TRAINER_ID": "0", "PADDLE_CURRENT_ENDPOINT": ""}, "one trainer twice", {"node2", "node3"}),
        (1, {"TRAINING_ROLE": "TRAINER"}, "is not a server", {"node1"}),
    ],
)
def test_inconsistent_roles(index: int, changed: dict[str, str], words: str, nodes: set[str]) -> None:
    records = [server(0), server(1), trainer(2), trainer(3)]
    make = server if index < 2 else trainer
    records[index] = make(index, **changed)
    said = [v for v in judge(roles_of_nodes_do_not_fit, PS, fleet(4), facts(*records)) if v.status is Status.FAIL]
    assert [verdict for verdict in said if words in verdict.message and set(verdict.nodes) == nodes], said


def test_a_reordered_list_is_a_difference() -> None:
    odd = trainer(3, PADDLE_PSERVERS_IP_PORT_LIST="10.0.0.2:6170,10.0.0.1:6170")
    seen = facts(server(0), server(1), trainer(2), odd)
    found = one(judge(communication_variables_differ, PS, fleet(4), seen), Status.FAIL)
    assert found.nodes == ("node3",) and found.severity is not None and found.severity.value == "error"


def test_roles_unset_or_set_by_the_job_are_not_judged() -> None:
    bare = facts(participants_node(0), participants_node(1))
    assert statuses(judge(roles_of_nodes_do_not_fit, PS, fleet(2), bare)) == {"not-applicable"}
    ours = job(ps_mode=True, env_TRAINING_ROLE="TRAINER")
    assert statuses(judge(roles_of_nodes_do_not_fit, ours, fleet(2), bare)) == {"not-applicable"}
    assert statuses(judge(roles_of_nodes_do_not_fit, PS, local_fleet(2), bare)) == {"not-applicable"}
    blind = facts(*(fact(environment, f"node{i}", TIMEOUT) for i in range(2)))
    for check in (roles_of_nodes_do_not_fit, tf_configs_do_not_fit, library_paths_differ):
        assert statuses(judge(check, PS, fleet(2), blind)) == {"unknown"}


CLUSTER = {"worker": ["a:1", "b:1"], "ps": ["c:1"]}


def tf(index: int, role: str, number: int, cluster: object = CLUSTER) -> FactRecord:
    return participants_node(index, TF_CONFIG=json.dumps({"cluster": cluster, "task": {"type": role, "index": number}}))


def test_tf_configs() -> None:
    fitting = facts(tf(0, "worker", 0), tf(1, "worker", 1), tf(2, "ps", 0), tf(3, "evaluator", 0))
    assert statuses(judge(tf_configs_do_not_fit, job(), fleet(4), fitting)) == {"pass"}
    twice = facts(tf(0, "worker", 0), tf(1, "worker", 0))
    assert one(judge(tf_configs_do_not_fit, job(), fleet(2), twice), Status.FAIL).nodes == ("node0", "node1")
    beyond = facts(tf(0, "worker", 0), tf(1, "worker", 2))
    assert "its cluster has only 2" in one(judge(tf_configs_do_not_fit, job(), fleet(2), beyond), Status.FAIL).message
    other = facts(tf(0, "worker", 0), tf(1, "worker", 1), tf(2, "ps", 0, {**CLUSTER, "worker": ["b:1", "a:1"]}))
    assert one(judge(tf_configs_do_not_fit, job(), fleet(3), other), Status.FAIL).nodes == ("node2",)
    broken = facts(
        tf(0, "worker", 0), participants_node(1, TF_CONFIG="{'cluster': {}}"), participants_node(2, TF_CONFIG="[1]")
    )
    assert one(judge(tf_configs_do_not_fit, job(), fleet(3), broken), Status.FAIL).nodes == ("node1", "node2")
    assert statuses(
        judge(tf_configs_do_not_fit, job(), fleet(2), facts(participants_node(0), participants_node(1)))
    ) == {"not-applicable"}


def test_another_library_path() -> None:
    seen = facts(
        participants_node(0, LD_LIBRARY_PATH="/a:/b"),
        participants_node(1, LD_LIBRARY_PATH="/a:/b:"),
        participants_node(2, LD_LIBRARY_PATH="/c:/a"),
    )
    found = one(judge(library_paths_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "/c only there; /b not there" in found.message
    order = facts(
        participants_node(0, PYTHONPATH="/a:/b"),
        participants_node(1, PYTHONPATH="/a:/b"),
        participants_node(2, PYTHONPATH="/b:/a"),
    )
    assert "another order" in one(judge(library_paths_differ, job(), fleet(3), order), Status.FAIL).message
    ours = job(env_PYTHONPATH="/a")
    assert statuses(judge(library_paths_differ, ours, fleet(3), order)) == {"pass"}


def test_a_library_folder_missing_on_one_node() -> None:
    def lacking(index: int, *folders: str) -> FactRecord:
        return fact(
            environment, f"node{index}", Environment({"LD_LIBRARY_PATH": "/a:/b"}, missing_folders=list(folders))
        )

    found = one(
        judge(library_paths_differ, job(), fleet(3), facts(lacking(0), lacking(1), lacking(2, "/b"))), Status.FAIL
    )
    assert found.nodes == ("node2",) and "/b" in found.message
    everywhere = facts(*(lacking(index, "/b") for index in range(3)))
    assert statuses(judge(library_paths_differ, job(), fleet(3), everywhere)) == {"pass"}
    most = one(
        judge(library_paths_differ, job(), fleet(3), facts(lacking(0), lacking(1, "/b"), lacking(2, "/b"))), Status.FAIL
    )
    assert set(most.nodes) == {"node1", "node2"}


def test_lines_that_nccl_misreads() -> None:
    file = SettingsFile("/etc/nccl.conf", unread=["line 1: the name is `NCCL_DEBUG ` with its blanks"])
    closed = SettingsFile("/root/.nccl.conf", problem="Permission denied")
    seen = facts(
        fact(environment, "node0", Environment({}, nccl_files=[file])),
        fact(environment, "node1", Environment({}, nccl_files=[file, closed])),
    )
    said = [v for v in judge(settings_file_misread, job(backend="nccl"), fleet(2), seen) if v.status is Status.FAIL]
    assert {verdict.nodes for verdict in said} == {("node0", "node1"), ("node1",)}
    assert statuses(judge(settings_file_misread, job(backend="gloo"), fleet(2), seen)) == {"not-applicable"}
    fine = facts(fact(environment, "node0", Environment({})))
    assert statuses(judge(settings_file_misread, job(backend="nccl"), fleet(1), fine)) == {"pass"}
    blind = facts(fact(environment, "node0", Unavailable("denied", "no")))
    assert statuses(judge(settings_file_misread, job(backend="nccl"), fleet(1), blind)) == {"unknown"}


# Nodes where ranks start slowly.


def read(index: int, took_s: float, **more: Any) -> FactRecord:
    return fact(read_cost, f"node{index}", ReadCost("torch", "/env/torch", 300, took_s, **more), context=True)


def test_a_node_that_reads_files_slowly() -> None:
    seen = facts(read(0, 0.05), read(1, 0.06), read(2, 2.0))
    found = one(judge(framework_comes_slowly, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "2.0 s on node2" in found.message and "less than 0.06 s" in found.message
    busy = facts(read(0, 0.05), read(1, 0.06), read(2, 0.9))
    assert statuses(judge(framework_comes_slowly, job(), fleet(3), busy)) == {"pass"}
    alike = facts(*(read(i, 2.0) for i in range(3)))
    assert statuses(judge(framework_comes_slowly, job(), fleet(3), alike)) == {"pass"}


def test_a_busy_node_is_inconclusive() -> None:
    seen = facts(read(0, 0.05), read(1, 0.06), read(2, 2.0, load_per_core=4.0))
    said = judge(framework_comes_slowly, job(), fleet(3), seen)
    assert statuses(said) == {"unknown", "pass"} and "load 4.0" in one(said, Status.UNKNOWN).message


def test_reading_files_times_out() -> None:
    seen = facts(*(read(i, 2.6, cut=True) for i in range(2)))
    found = one(judge(framework_comes_slowly, job(), fleet(2), seen), Status.FAIL)
    assert len(found.nodes) == 2 and "every node" in found.message and "more than 2.6 s" in found.message
    assert statuses(judge(framework_comes_slowly, job(), fleet(1), facts(fact(read_cost, "node0", TIMEOUT)))) == {
        "unknown"
    }


def test_an_import_runs_only_in_the_pedantic_profile() -> None:
    assert framework_imports_slowly.meta.profile == "pedantic" and framework_comes_slowly.meta.profile == "default"
    assert len(plan(framework_imports_slowly, job(), fleet(2))) == 2

    def took(index: int, seconds: float) -> FactRecord:
        return fact(import_cost, f"node{index}", ImportCost("torch", seconds), context=True)

    seen = facts(took(0, 2.0), took(1, 2.2), took(2, 28.0))
    found = one(judge(framework_imports_slowly, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "28.0 s" in found.message
    assert statuses(judge(framework_imports_slowly, job(), fleet(2), facts(took(0, 2.0), took(1, 9.0)))) == {"pass"}
    assert statuses(judge(framework_imports_slowly, job(), fleet(2), facts(took(0, 2.0), took(1, 40.0)))) == {"fail"}
    assert statuses(judge(framework_imports_slowly, job(), fleet(1), facts(fact(import_cost, "node0", TIMEOUT)))) == {
        "unknown"
    }


# Ranks that can or cannot start on each node.


GOOD = Installed("3.11.7", "/env/bin/python3", "/usr/bin/python3.11", "/env", "venv", "x86_64", "cpython-311-x86_64")
ABSENT = "the job context cannot be entered: `/env/bin/python3` (the job) cannot be run: No such file or directory"


def closed(node: str, reason: str, provenance: str = "interpreter /env/bin/python3 (--python)") -> FactRecord:
    made = fact(installed, node, Unavailable("context", reason), context=True)
    return replace(made, provenance=provenance)


def good(count: int) -> list[FactRecord]:
    return [fact(installed, f"node{index}", GOOD, context=True) for index in range(count)]


def test_every_node_is_entered_in_the_job_context() -> None:
    asked = plan(ranks_cannot_start, job(), fleet(3))
    assert [request.node for request in asked] == ["node0", "node1", "node2"]
    assert all(request.context for request in asked)


def test_a_node_without_the_interpreter_is_named() -> None:
    seen = facts(*good(2), closed("node2", ABSENT))
    found = one(judge(ranks_cannot_start, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "No such file" in found.message and "on the other nodes" in found.message


def test_an_interpreter_missing_everywhere_is_an_error() -> None:
    seen = facts(*(closed(f"node{index}", ABSENT) for index in range(3)))
    found = one(judge(ranks_cannot_start, job(), fleet(3), seen), Status.FAIL)
    assert len(found.nodes) == 3


def test_an_old_interpreter_is_an_error_only_beside_newer_ones() -> None:
    old = "`/env/bin/python3` is older than Python 3.8"
    found = one(judge(ranks_cannot_start, job(), fleet(2), facts(*good(1), closed("node1", old))), Status.FAIL)
    assert "3.8" in found.remedy
    everywhere = facts(*(closed(f"node{index}", old) for index in range(2)))
    said = one(judge(ranks_cannot_start, job(), fleet(2), everywhere), Status.UNKNOWN)
    assert not said.required


def test_setup_lines_that_fail_everywhere_are_a_warning() -> None:
    module = "`python3` ended with 127 before its Python started: bash: module: command not found"
    everywhere = facts(*(closed(f"node{index}", module) for index in range(2)))
    assert one(judge(ranks_cannot_start, job(), fleet(2), everywhere), Status.UNKNOWN).required
    assert statuses(judge(ranks_cannot_start, job(), fleet(2), facts(*good(1), closed("node1", module)))) == {"fail"}


def test_an_unknown_context_is_not_a_fault() -> None:
    nothing = "nothing names the interpreter the ranks run with; pass --python PATH"
    seen = facts(*(closed(f"node{index}", nothing, provenance="") for index in range(2)))
    said = one(judge(ranks_cannot_start, job(), fleet(2), seen), Status.UNKNOWN)
    assert not said.required and "--python" in said.message


def test_a_node_that_times_out_is_unknown() -> None:
    seen = facts(*good(1), fact(installed, "node1", TIMEOUT, context=True))
    assert statuses(judge(ranks_cannot_start, job(), fleet(2), seen)) == {"unknown"}
    assert statuses(judge(ranks_cannot_start, job(), fleet(2), facts(*good(2)))) == {"pass"}


def test_a_container_that_is_not_entered_makes_the_verdict_incomplete() -> None:
    reason = f"{IN_CONTAINER} docker x:1, which preflight cannot enter yet"
    seen = facts(*(fact(installed, f"node{i}", Unavailable("context", reason), context=True) for i in range(2)))
    found = one(judge(ranks_cannot_start, job(), fleet(2), seen), Status.UNKNOWN)
    assert found.required and found.nodes == ("node0", "node1")


def test_an_interpreter_outside_of_the_container_is_stated() -> None:
    records = [replace(record, provenance=f"interpreter python3, {OUTSIDE} docker x:1") for record in good(2)]
    found = one(judge(ranks_cannot_start, job(), fleet(2), facts(*records)), Status.UNKNOWN)
    assert not found.required and "was examined on the host" in found.message
