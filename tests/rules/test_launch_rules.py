"""World size, Slurm and rendezvous rules on jobs built from claims."""

from __future__ import annotations

from preflight.model.findings import Severity, Status
from preflight.model.job import Job, OneOf, Relation, Scope, Strength, Value
from preflight.model.job.value import Plain
from preflight_rules.launch.world import launch_size_disagreement, launch_size_exceeds_bound
from preflight_rules.rendezvous.conflicts import standalone_on_several_nodes
from preflight_rules.rendezvous.identities import rendezvous_on_loopback
from preflight_rules.rendezvous.siblings import node_rank_twice_or_missing, rendezvous_differs_between_launches
from preflight_rules.schedulers.slurm import (
    launcher_started_more_than_once_per_node,
    one_task_for_several_gpus,
)
from tests.rules.rule_builders import RUN_TIME, claim, granted, job, launch, needs, places, verdicts


def sbatch(nodes: Value | Plain, nnodes: Value | Plain, *, wrappers: tuple[str, ...] = ("srun",)) -> Job:
    """A batch script for `nodes` nodes whose torchrun expects `nnodes`."""
    run = launch("train.sbatch:9", wrappers=wrappers)
    return job(
        granted("nodes", nodes, "train.sbatch:2", f"--nodes={nodes}"),
        granted("tasks_per_node", 1, "train.sbatch:3", "--ntasks-per-node=1"),
        needs("nodes", nnodes, "train.sbatch:9", f"--nnodes={nnodes}", scope=run),
        claim("processes_per_node", 8, "train.sbatch:10", "--nproc_per_node=8", scope=run),
        launches=(run,),
    )


def test_more_nodes_expected_than_granted_is_an_error_that_names_the_missing_node() -> None:
    (found,) = verdicts(launch_size_disagreement, sbatch(4, 5), Status.FAIL)
    assert found.severity is None
    assert "`--nnodes=5` expects 5 nodes" in found.message
    assert "`--nodes=4` (train.sbatch:2) gives 4" in found.message
    assert "Node 4 will never join" in found.message
    assert [(place.path, place.line) for place in found.locations] == [
        ("train.sbatch", 9),
        ("train.sbatch", 2),
    ]


def test_fewer_nodes_without_srun_only_leave_nodes_idle() -> None:
    (found,) = verdicts(launch_size_disagreement, sbatch(4, 2, wrappers=()), Status.FAIL)
    assert found.severity is Severity.WARNING
    assert "Nodes 2 to 3 would be idle" in found.message


def test_every_alternative_must_disagree() -> None:
    assert not verdicts(launch_size_disagreement, sbatch(4, OneOf((2, 4))), Status.FAIL)
    assert verdicts(launch_size_disagreement, sbatch(4, OneOf((6, 8))), Status.FAIL)


def test_unresolved_is_unknown_and_equal_passes() -> None:
    assert verdicts(launch_size_disagreement, sbatch(4, RUN_TIME), Status.UNKNOWN)
    assert not verdicts(launch_size_disagreement, sbatch(4, RUN_TIME), Status.FAIL)
    assert verdicts(launch_size_disagreement, sbatch(4, 4), Status.PASS)


def test_a_smaller_step_does_not_contradict_the_allocation() -> None:
    run = launch("train.sbatch:9", wrappers=("srun",))
    step = claim("nodes", 2, "train.sbatch:9", "-N2", source="slurm", scope=run, strength=Strength.SCHEDULER)
    subject = job(
        granted("nodes", 4, "train.sbatch:2", "--nodes=4"),
        step,
        needs("nodes", 2, "train.sbatch:9", "--nnodes=2", scope=run),
        launches=(run,),
    )
    assert not verdicts(launch_size_disagreement, subject, Status.FAIL)


def test_world_size_of_the_script_is_compared_with_nodes_times_processes() -> None:
    base = sbatch(2, 2)
    run = base.launches[0]
    wrong = base.with_claims([needs("world_size", 8, "train.py:4", "world_size=8", source="python", scope=run)])
    (found,) = verdicts(launch_size_disagreement, wrong, Status.FAIL)
    assert "Ranks 8 to 15 would be surplus" in found.message
    right = base.with_claims([needs("world_size", 16, "train.py:4", "world_size=16", source="python", scope=run)])
    assert not verdicts(launch_size_disagreement, right, Status.FAIL)


def test_a_requirement_in_a_branch_is_unknown() -> None:
    base = sbatch(2, 2)
    more = needs(
        "world_size",
        8,
        "train.py:4",
        "world_size=8",
        source="python",
        scope=base.launches[0],
        condition="args.x",
    )
    subject = base.with_claims([more])
    assert not verdicts(launch_size_disagreement, subject, Status.FAIL)
    assert verdicts(launch_size_disagreement, subject, Status.UNKNOWN)


def test_a_hostfile_bounds_the_nodes() -> None:
    run = launch("run.sh:3", "deepspeed")

    def ask(nodes: Value | Plain) -> Job:
        return job(
            claim("nodes", nodes, "run.sh:3", f"--num_nodes={nodes}", source="deepspeed", scope=run),
            claim("nodes", 4, "hosts:1", "w1 … w4", source="hostfile", scope=run, relation=Relation.AT_MOST),
            launches=(run,),
        )

    (found,) = verdicts(launch_size_exceeds_bound, ask(8), Status.FAIL)
    assert "4 too few" in found.message
    assert places(launch_size_exceeds_bound, ask(8)) == ["run.sh:3"]
    assert not verdicts(launch_size_exceeds_bound, ask(4), Status.FAIL)
    assert verdicts(launch_size_exceeds_bound, ask(RUN_TIME), Status.UNKNOWN)


def tasks(count: Value | Plain, *, processes: int = 8, launcher: str = "torchrun") -> Job:
    """srun with `count` tasks per node."""
    run = launch("train.sbatch:9", launcher, wrappers=("srun",))
    return job(
        granted("nodes", 2, "train.sbatch:2"),
        granted("tasks_per_node", count, "train.sbatch:3", f"--ntasks-per-node={count}"),
        granted("gpus_per_node", 8, "train.sbatch:4", "--gres=gpu:8"),
        claim("processes_per_node", processes, "train.sbatch:9", f"--nproc_per_node={processes}", scope=run),
        launches=(run,),
    )


def test_a_launcher_per_gpu_multiplies_the_ranks() -> None:
    rule = launcher_started_more_than_once_per_node
    (found,) = verdicts(rule, tasks(8), Status.FAIL)
    assert "8 x 8 = 64 ranks" in found.message
    assert places(rule, tasks(8)) == ["train.sbatch:3"]
    assert verdicts(rule, tasks(1), Status.PASS)
    assert verdicts(rule, tasks(RUN_TIME), Status.UNKNOWN)
    assert not verdicts(rule, tasks(8, processes=1), Status.FAIL)


def test_one_task_per_node_leaves_gpus_idle() -> None:
    rule = one_task_for_several_gpus
    assert places(rule, tasks(1, launcher="srun")) == ["train.sbatch:9"]
    assert not verdicts(rule, tasks(8, launcher="srun"), Status.FAIL)
    assert verdicts(rule, tasks(RUN_TIME, launcher="srun"), Status.UNKNOWN)
    assert not verdicts(rule, tasks(1), Status.FAIL)


def meeting(address: Value | Plain, nodes: Value | Plain = 2, *, strength: Strength = Strength.FLAG) -> Job:
    """torchrun over `nodes` nodes that meet at `address`."""
    run = launch("run.sh:3")
    return job(
        needs("nodes", nodes, "run.sh:3", f"--nnodes={nodes}", scope=run),
        claim("master_addr", address, "run.sh:4", f"--master_addr={address}", scope=run, strength=strength),
        launches=(run,),
    )


def test_loopback_is_wrong_only_with_several_nodes() -> None:
    rule = rendezvous_on_loopback
    for address in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "127.0.1.1"):
        assert places(rule, meeting(address)) == ["run.sh:4"], address
    assert verdicts(rule, meeting("localhost", 1), Status.PASS)
    assert verdicts(rule, meeting("node0"), Status.PASS)
    assert verdicts(rule, meeting(RUN_TIME), Status.UNKNOWN)
    assert not verdicts(rule, meeting(OneOf(("localhost", "node0"))), Status.FAIL)
    assert not verdicts(rule, meeting("localhost", OneOf((1, 2))), Status.FAIL)


def test_the_default_address_points_at_the_launcher() -> None:
    (found,) = verdicts(rendezvous_on_loopback, meeting("127.0.0.1", strength=Strength.DEFAULT), Status.FAIL)
    assert found.locations[0].line == 3
    assert "is given no address" in found.message


def siblings(port: Value | Plain, ranks: tuple[Value | Plain, Value | Plain] = (0, 1)) -> Job:
    """Two scripts for two nodes; the second has another port."""
    first, second = launch("node0.sh:3"), launch("node1.sh:3")
    claims = []
    for run, number, rank in ((first, 29500, ranks[0]), (second, port, ranks[1])):
        path = run.span.path
        claims += [
            needs("nodes", 2, f"{path}:3", "--nnodes=2", scope=run),
            claim("node_rank", rank, f"{path}:4", f"--node_rank={rank}", scope=run),
            claim("master_port", number, f"{path}:5", f"--master_port={number}", scope=run),
        ]
    return job(*claims, launches=(first, second))


def test_siblings_must_share_their_rendezvous() -> None:
    rule = rendezvous_differs_between_launches
    (found,) = verdicts(rule, siblings(29501), Status.FAIL)
    assert [place.path for place in found.locations] == ["node0.sh", "node1.sh"]
    assert not verdicts(rule, siblings(29500), Status.FAIL)
    assert verdicts(rule, siblings(RUN_TIME), Status.UNKNOWN)
    assert not verdicts(rule, siblings(29501, (0, 0)), Status.FAIL)


def test_node_ranks_count_from_zero_each_once() -> None:
    rule = node_rank_twice_or_missing
    assert places(rule, siblings(29500, (0, 0))) == ["node1.sh:4"]
    assert places(rule, siblings(29500, (0, 2))) == ["node1.sh:4"]
    assert not verdicts(rule, siblings(29500), Status.FAIL)
    assert verdicts(rule, siblings(29500, (0, RUN_TIME)), Status.UNKNOWN)


def test_standalone_with_several_nodes() -> None:
    rule = standalone_on_several_nodes

    def with_nodes(nodes: Value | Plain) -> Job:
        run = launch("run.sh:3")
        return job(
            claim("standalone", True, "run.sh:3", "--standalone", scope=run),
            needs("nodes", nodes, "run.sh:3", f"--nnodes={nodes}", scope=Scope(launch=run.id)),
            launches=(run,),
        )

    assert places(rule, with_nodes(2)) == ["run.sh:3"]
    assert verdicts(rule, with_nodes(1), Status.PASS)
    assert verdicts(rule, with_nodes(RUN_TIME), Status.UNKNOWN)
