"""Launchers of single frameworks: composer, fabric, colossalai, torchx, ray; and launchers after parallel shells and in
defaults.
"""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Relation, Strength
from tests.sources.launchers.reading_lines import is_default, only, read, values


def test_composer() -> None:
    said = read("composer -n 8 --world_size 16 --node_rank 1 --master_addr a --master_port 7501 t.py --x")
    assert said.launches[0].program == "t.py"
    found = values(said, source="composer")
    assert (found["processes_per_node"], found["world_size"], found["nodes"], found["node_rank"]) == (8, 16, 2, 1)
    assert (found["master_addr"], found["master_port"]) == ("a", 7501)


def test_composer_takes_variables_and_one_node_by_default() -> None:
    assert only(read("NODE_RANK=2 composer -n 8 t.py"), "node_rank").strength is Strength.ENVIRONMENT
    assert is_default(only(read("composer t.py"), "nodes"))
    assert not [c for c in read("composer $MORE t.py").claims if c.quantity == "nodes"]


@pytest.mark.parametrize("line", ["fabric run {}", "lightning run model {}", "python -m lightning run model {}"])
def test_fabric(line: str) -> None:
    said = read(line.format("--devices=0,1 --num-nodes=2 --node-rank=1 --main-address=a t.py --lr 1"))
    found = values(said, source="fabric")
    assert (found["processes_per_node"], found["nodes"], found["node_rank"]) == (2, 2, 1)
    assert (found["master_addr"], found["master_port"]) == ("a", 29400)
    assert said.launches[0].program == "t.py"


def test_other_subcommands_of_lightning_and_accelerate_launch_nothing() -> None:
    assert read("fabric consolidate x").launches == ()
    assert read("colossalai check -i").launches == ()
    assert read("torchx status x").launches == ()
    assert read("ray stop").launches == ()


def test_colossalai() -> None:
    said = read("colossalai run --nproc_per_node 8 --host h1,h2 --master_addr h1 t.py -c x")
    found = values(said, source="colossalai")
    assert (found["nodes"], found["hosts"], found["processes_per_node"]) == (2, ("h1", "h2"), 8)
    assert is_default(only(said, "master_port"))
    assert read("colossalai run --hostfile hosts t.py", hosts="a\n").references[0].role == "hostfile"


def test_torchx() -> None:
    said = read("torchx run -s slurm -cfg partition=x dist.ddp -j 2x8 --script t.py -- --lr 1")
    assert said.launches[0].program == "t.py"
    required = values(said, source="torchx", relation=Relation.REQUIRES)
    assert required["nodes"] == 2
    assert only(said, "processes_per_node").value == Known(8)
    assert only(read("torchx run dist.ddp -j 4 --script t.py"), "processes_per_node").value == Known(4)


def test_ray_start_and_submit() -> None:
    head = read("ray start --head --node-ip-address=10.0.0.1 --num-gpus=8 --block")
    found = values(head, source="ray")
    assert (found["ray_role"], found["ray_num_gpus"], found["ray_block"]) == ("head", 8, True)
    assert (found["master_addr"], found["master_port"]) == ("10.0.0.1", 6379)
    worker = values(read("ray start --address=$HEAD:6380"), source="ray")
    assert (worker["ray_role"], worker["master_port"], worker["ray_block"]) == ("worker", 6380, False)
    job = read("ray job submit --address=http://h:8265 --working-dir . -- python t.py --lr 1")
    assert job.launches[0].program == "t.py"
    assert only(job, "ray_submit_address").value == Known("http://h:8265")


@pytest.mark.parametrize(
    "line",
    [
        "${LAUNCHER:-torchrun --nproc_per_node=4} t.py",
        'L=${LAUNCHER:="torchrun --nproc_per_node=4"}\n$L t.py',
        "srun ${LAUNCHER:-torchrun --nproc_per_node=4} t.py",
        'pdsh -w n[0-3] "cd /w; torchrun --nproc_per_node=4 t.py"',
        "clush -w n[0-3] torchrun --nproc_per_node=4 t.py",
        'pssh -h hosts -i "torchrun --nproc_per_node=4 t.py"',
        'tmux send-keys -t s "torchrun --nproc_per_node=4 t.py" Enter',
        'tmux new-session -d "torchrun --nproc_per_node=4 t.py"',
        "su -c 'torchrun --nproc_per_node=4 t.py' user",
        "screen -dmS x torchrun --nproc_per_node=4 t.py",
    ],
)
def test_launchers_after_defaults_parallel_shells_and_terminals(line: str) -> None:
    said = read(line)
    assert [launch.launcher for launch in said.launches] == ["torchrun"]
    assert only(said, "processes_per_node").value == Known(4)


def test_a_parallel_shell_states_its_hosts() -> None:
    said = values(read('pdsh -w n[0-3] "torchrun --nnodes=4 t.py"'), source="pdsh")
    assert (said["nodes"], said["tasks_per_node"], said["hosts"]) == (4, 1, ("n0", "n1", "n2", "n3"))


def test_the_value_of_an_option_is_not_a_launcher() -> None:
    assert read("./run.sh --backend deepspeed --model x t.txt").launches == ()


def test_overrides_of_the_trainer_under_srun_are_required_of_it() -> None:
    said = read(
        "#SBATCH -N 2\nsrun python t.py trainer.num_nodes=2 ++trainer.devices=8 model.tensor_model_parallel_size=4"
    )
    required = values(said, source="arguments", relation=Relation.REQUIRES)
    assert (required["nodes"], required["processes_per_node"]) == (2, 8)
    assert only(said, "tensor_parallel_size").value == Known(4)


@pytest.mark.parametrize("devices", ["8", "0,1,2,3,4,5,6,7", "'[0,1,2,3,4,5,6,7]'"])
def test_lightning_without_a_launcher_starts_its_own_processes(devices: str) -> None:
    said = read(f"python t.py fit --trainer.devices {devices} --trainer.num_nodes=1")
    claim = only(said, "processes_per_node")
    assert (claim.value, claim.relation) == (Known(8), Relation.SETS)


def test_one_device_and_other_overrides_are_not_a_launch() -> None:
    assert read("python t.py trainer.devices=1 model.hidden_size=8").launches == ()
    assert read("python t.py trainer.devices=-1").launches == ()
    assert read("python main.py training.trainer.num_nodes=4").launches == ()
    assert read("python t.py fit --trainer.devices auto").launches == ()


HEADER = "#SBATCH --nodes=4\n#SBATCH --ntasks-per-node=8\n"


@pytest.mark.parametrize(
    ("script", "launcher", "program"),
    [
        (HEADER + "srun ./trainer --layers 4", "srun", "trainer"),
        (HEADER + "mpirun -x NCCL_DEBUG=INFO /opt/app/trainer", "mpirun", "/opt/app/trainer"),
        ("mpirun --hostfile hosts ./trainer", "mpirun", "trainer"),
        ("mpirun -np 4 ./trainer", "mpirun", "trainer"),
        ("srun -n 16 ./trainer", "srun", "trainer"),
        (HEADER + "srun lmp -in in.lj", "srun", "lmp"),
        ("srun ./typed_inside_an_allocation", "srun", "typed_inside_an_allocation"),
        ("mpirun ./slots_of_the_machine", "mpirun", "slots_of_the_machine"),
    ],
)
def test_programs_other_than_python(script: str, launcher: str, program: str) -> None:
    (launch,) = read(script).launches
    assert (launch.launcher, launch.program) == (launcher, program)


@pytest.mark.parametrize(
    "script",
    [
        HEADER + "srun hostname",
        HEADER + "srun -n 1 ./prepare",
        HEADER + "srun -n 4 mytool --all",
        "srun typed_inside_an_allocation",
        "mpirun -np 1 ./one",
    ],
)
def test_tools_and_single_processes_are_not_launches(script: str) -> None:
    assert read(script).launches == ()


@pytest.mark.parametrize("starter", ["srun", "mpirun -np 4"])
def test_a_followed_script_is_not_a_launch_itself(starter: str) -> None:
    found = read(f"{HEADER}{starter} ./inner.sh", inner_dot_sh="torchrun --nnodes=4 t.py\n")
    assert [launch.launcher for launch in found.launches] == ["torchrun"]
