"""How launchers reach the other nodes."""

from __future__ import annotations

from dataclasses import replace

from preflight.model.findings import Severity, Status
from preflight.model.job import Claim, Job
from preflight.model.recording import FactRecord, Unavailable
from preflight_checks.context.launcher_access import (
    accounts_differ,
    launcher_cannot_log_in,
    launcher_tool_missing,
    remote_launches,
    variables_not_handed_on,
)
from preflight_checks.probes.environment import Environment, SettingsFile, environment
from preflight_checks.probes.launcher_tools import Login, Logins, Tool, Tools, logins, tools
from tests.checks.check_builders import (
    LAUNCH,
    claim,
    fact,
    facts,
    fleet,
    judge,
    local_fleet,
    one,
    plan,
    statuses,
)
from tests.checks.check_builders import job as built


def job(launcher: str = "deepspeed", *claims: Claim, wrappers: tuple[str, ...] = (), **values: object) -> Job:
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

    assert by(job()) == ["deepspeed (pdsh)"]
    assert by(job(multinode_launcher="openmpi")) == ["deepspeed (mpirun)"]
    assert by(job(multinode_launcher="slurm")) == by(job(each_node_itself=True)) == by(job(nodes=1)) == []
    assert by(job("torchrun")) == by(job("torchrun", wrappers=("srun",))) == []
    assert by(job("torchrun", wrappers=("pdsh",))) == ["pdsh"]
    assert by(job("mpirun")) == ["mpirun"] and by(job("python", wrappers=("horovodrun",))) == ["horovodrun"]
    assert by(job("accelerate")) == [] and by(job("accelerate", multinode_launcher="pdsh")) == ["deepspeed (pdsh)"]
    batch = replace(claim("nodes", 4), source="slurm", scope=replace(LAUNCH.scope, launch=""))
    assert by(job("mpirun", batch)) == [] and by(job("deepspeed", batch)) == ["deepspeed (pdsh)"]


def test_logins_use_the_names_of_the_hostfile() -> None:
    (asked,) = plan(launcher_cannot_log_in, job("deepspeed", claim("hosts", ("node0", "NODE1.", "node2"))), fleet(4))
    assert asked.node == "node0" and asked.params["targets"] == ("NODE1.", "node2", "node3")
    assert plan(launcher_cannot_log_in, job("torchrun"), fleet(4)) == []
    assert plan(launcher_cannot_log_in, job(), local_fleet(4)) == []
    assert plan(launcher_cannot_log_in, job(), fleet(3, node0="no route")) == []
    (some,) = plan(launcher_cannot_log_in, job(), fleet(3, node2="down"))
    assert some.params["targets"] == ("node1",)
    (many,) = plan(launcher_cannot_log_in, job(), fleet(300))
    assert len(many.params["targets"]) <= 64 and many.params["targets"][-1] > "node29"


def test_a_login_prompt_is_an_error_if_the_job_starts_on_the_first_node() -> None:
    said = Login("node2", 255, "alice@node2: Permission denied (publickey).")
    seen = fact(logins, "node0", Logins([Login("node1", 0), said]))
    unsure = one(judge(launcher_cannot_log_in, job(), fleet(3), facts(seen)), Status.FAIL)
    assert unsure.severity is Severity.WARNING and unsure.nodes == ("node2",) and "Permission denied" in unsure.message
    sure = one(judge(launcher_cannot_log_in, job(), fleet(3), facts(seen, BATCH)), Status.FAIL)
    assert sure.severity is None and "authorized_keys" in sure.remedy


def test_one_reason_on_many_hosts_is_one_finding() -> None:
    denied = [Login(f"node{i}", 255, f"root@node{i}: Permission denied (publickey).") for i in (1, 2)]
    silent = Login("node3", None)
    said = judge(launcher_cannot_log_in, job(), fleet(4), facts(fact(logins, "node0", Logins([*denied, silent]))))
    failing = [verdict for verdict in said if verdict.status is Status.FAIL]
    assert [verdict.nodes for verdict in failing] == [("node1", "node2"), ("node3",)]
    assert "no answer in time" in failing[1].message
    unknown_key = [Login("node1", 255, "Host key verification failed.")]
    found = one(
        judge(launcher_cannot_log_in, job(), fleet(2), facts(fact(logins, "node0", Logins(unknown_key)))), Status.FAIL
    )
    assert "host key" in found.remedy


def test_logins_that_could_not_be_tried_are_unknown() -> None:
    untried = facts(fact(logins, "node0", Logins([Login("node1", 0)], ["node2"])))
    assert statuses(judge(launcher_cannot_log_in, job(), fleet(3), untried)) == {"unknown", "pass"}
    absent = facts(fact(logins, "node0", Unavailable("missing", "`ssh` is not on PATH")))
    assert statuses(judge(launcher_cannot_log_in, job(), fleet(3), absent)) == {"unknown"}
    assert statuses(judge(launcher_cannot_log_in, job(), fleet(3, node0="down"), facts())) == {"unknown"}
    assert statuses(judge(launcher_cannot_log_in, job("torchrun"), fleet(3), facts())) == {"not-applicable"}


def tool(node: str, name: str, path: str = "", context: bool = False, **more: object) -> FactRecord:
    return fact(tools, node, Tools([Tool(name, path, **more)], "/usr/bin"), context=context)  # type: ignore[arg-type]


def test_each_node_gets_requests_for_the_tools_it_needs() -> None:
    over_mpi = plan(launcher_tool_missing, job(multinode_launcher="openmpi"), fleet(2))
    assert [(r.node, r.params["names"]) for r in over_mpi] == [
        ("node0", ("mpirun", "ssh")),
        ("node1", ("orted|prted",)),
    ]
    own = plan(launcher_tool_missing, job("torchrun"), fleet(2))
    assert [(r.node, r.params["names"], r.context) for r in own] == [(f"node{i}", ("torchrun",), True) for i in (0, 1)]
    module = replace(LAUNCH, span=replace(LAUNCH.span, snippet="python -m torch.distributed.run train.py"))
    assert plan(launcher_tool_missing, replace(built(), launches=(module,)), fleet(2)) == []


def test_a_tool_missing_on_one_node_is_an_error() -> None:
    seen = [tool(f"node{i}", "torchrun", "/env/bin/torchrun" if i else "", context=True) for i in range(3)]
    found = one(judge(launcher_tool_missing, job("torchrun"), fleet(3), facts(*seen)), Status.FAIL)
    assert found.nodes == ("node0",) and found.severity is None and "PATH=/usr/bin" in found.evidence[0].observed


def test_a_tool_missing_everywhere_is_a_warning() -> None:
    seen = [tool(f"node{i}", "torchrun", context=True) for i in range(3)]
    found = one(judge(launcher_tool_missing, job("torchrun"), fleet(3), facts(*seen)), Status.FAIL)
    assert found.severity is Severity.WARNING and len(found.nodes) == 3


def test_a_missing_pdsh_is_an_error_in_a_batch_job() -> None:
    lacking = facts(fact(tools, "node0", Tools([Tool("pdsh"), Tool("ssh", "/usr/bin/ssh")], "/usr/bin")))
    assert one(judge(launcher_tool_missing, job(), fleet(2), lacking), Status.FAIL).severity is Severity.WARNING
    sure = facts(*lacking.records, BATCH)
    assert one(judge(launcher_tool_missing, job(), fleet(2), sure), Status.FAIL).severity is None


def test_a_slow_tool_and_one_of_another_version() -> None:
    late = tool("node0", "torchrun", "/t", context=True, problem="`torchrun` did not end within 3 s")
    assert "unknown" in statuses(judge(launcher_tool_missing, job("torchrun"), fleet(2), facts(late)))
    mpi = job(multinode_launcher="openmpi")
    held = [tool(f"node{i}", "orted|prted", "/usr/bin/orted", version=f"orted {4 + (i == 3)}.1") for i in (1, 2, 3)]
    found = one(judge(launcher_tool_missing, mpi, fleet(4), facts(*held)), Status.FAIL)
    assert found.nodes == ("node3",) and "5.1" in found.message and found.severity is Severity.WARNING


def test_variables_that_the_launcher_does_not_forward() -> None:
    ours = job("deepspeed", exported("GLOO_SOCKET_IFNAME", "eth0"), exported("NCCL_DEBUG"), exported("MY_NAME"))
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
    ours = job("mpirun", *claims, told, mpi_implementation="openmpi")
    found = one(judge(variables_not_handed_on, ours, fleet(2), seen), Status.FAIL)
    assert "-x OMP_NUM_THREADS" in found.remedy.replace("Add", "") and "UCX_TLS" not in found.message
    every = job("python", *claims, wrappers=("horovodrun",))
    assert statuses(judge(variables_not_handed_on, every, fleet(2), seen)) == {"not-applicable"}
    blind = facts(*(fact(environment, f"node{i}", Unavailable("denied", "no")) for i in range(2)))
    assert statuses(judge(variables_not_handed_on, ours, fleet(2), blind)) == {"unknown"}


def test_accounts() -> None:
    other = fact(environment, "node2", Environment({}, user="alice", uid=1003))
    found = one(judge(accounts_differ, job(), fleet(3), facts(plain("node0"), plain("node1"), other)), Status.FAIL)
    assert found.nodes == ("node2",) and "alice (1003)" in found.message
    assert statuses(judge(accounts_differ, job(), fleet(2), facts(plain("node0"), plain("node1")))) == {"pass"}
    assert statuses(judge(accounts_differ, job(), fleet(2), facts())) == {"unknown"}
    assert statuses(judge(accounts_differ, job(), local_fleet(2), facts())) == {"not-applicable"}
