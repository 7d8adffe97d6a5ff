"""Which commands are launches, and the context of each."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, OneOf, Relation, Strength, Unresolved
from preflight.sources.base import SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.launchers.launch_context import mebibytes
from preflight.sources.shell.shell_source import ShellSource
from tests.sources.launchers.reading_lines import is_default, only, read, values, why


@pytest.mark.parametrize(
    "line",
    [
        "python setup.py install",
        "python -c 'import torch.distributed'",
        "python -m venv venv",
        "python preprocess.py --input x",
        "pip install torchrun deepspeed",
        "echo torchrun --nnodes=2 train.py",
        "which torchrun",
        "pkill -f torchrun",
        "ps aux | grep torchrun",
        "srun hostname",
        "srun -n1 python preprocess.py",
        "#SBATCH -N 1\nsrun python download.py",
        "#SBATCH -N 1 --ntasks-per-node=1\nsrun python download.py",
        "#SBATCH -n 1\nsrun python download.py",
        "#SBATCH -N 4 -n 4\nsrun -N1 --ntasks-per-node=1 python download.py",
        "export MASTER_ADDR=n1 MASTER_PORT=1\npython make_index.py",
        "torchrun --help",
        "cat <<EOF\ntorchrun --nnodes=2 t.py\nEOF",
        "# torchrun --nnodes=2 t.py",
        "docker build -t torchrun .",
        "ssh node1",
    ],
)
def test_commands_that_are_not_launches(line: str) -> None:
    assert read(line).launches == ()


@pytest.mark.parametrize(
    ("line", "wrappers"),
    [
        ("srun --mpi=pmix -K1 -u -l --cpu-bind=none torchrun {}", ("srun",)),
        ("env A=b -u C torchrun {}", ()),
        ("nohup time torchrun {} &", ("time",)),
        ("timeout -k 5 10m numactl --cpunodebind=0 --membind=0 torchrun {}", ("timeout", "numactl")),
        ("exec torchrun {}", ("exec",)),
        ("A=b torchrun {}", ()),
        ("nsys profile -o out --trace=cuda,nvtx -f true torchrun {}", ("nsys",)),
        ("conda run -n env --no-capture-output torchrun {}", ("conda",)),
        ("singularity exec --nv -B /a:/b img.sif torchrun {}", ("apptainer",)),
        ("apptainer --quiet exec img.sif bash -c 'torchrun {}'", ("apptainer",)),
        ("docker run --rm --gpus all -v /a:/b --shm-size=8g img:1 torchrun {}", ("docker",)),
        ("ssh -p 22 user@n1 'cd /w && torchrun {}'", ("ssh",)),
        ("srun bash -c 'torchrun {}'", ("srun",)),
        ("uv run --frozen torchrun {}", ("uv",)),
        ("$PREFIX torchrun {}", ()),
        ("./with_env.sh torchrun {}", ("with_env.sh",)),
        ("/opt/env/bin/torchrun {}", ()),
        ("python -u /opt/env/bin/torchrun {}", ()),
        ("taskset -c 0-7 torchrun {}", ("taskset",)),
        ("mpirun -np 2 --bind-to none -mca btl ^openib -x A=b torchrun {}", ("mpirun",)),
    ],
)
def test_wrappers_are_removed(line: str, wrappers: tuple[str, ...]) -> None:
    reading = read(line.format("--nnodes=3 --nproc_per_node=2 t.py --lr 1"))
    assert len(reading.launches) == 1
    assert reading.launches[0].wrappers == wrappers
    assert reading.launches[0].arguments == ("--lr", "1")
    assert [c.value for c in reading.claims if c.source == "torchrun" and c.quantity == "nodes"] == [Known(3)]


def test_two_launches_on_one_line_have_two_ids() -> None:
    reading = read("torchrun --nnodes=1 a.py; torchrun --nnodes=1 b.py")
    assert [launch.id for launch in reading.launches] == ["run.sh:1", "run.sh:1#2"]


def test_python_under_srun_is_a_launch_and_its_tasks_are_ranks() -> None:
    reading = read("srun -n 16 python -u train.py --data-path /data/x")
    launch = reading.launches[0]
    assert (launch.launcher, launch.program, launch.wrappers) == ("srun", "train.py", ("srun",))
    assert only(reading, "data_path").value == Known("/data/x")
    assert only(reading, "interpreter").value == Known("python")


@pytest.mark.parametrize(
    "line", ["#SBATCH -N 2\nsrun python t.py", "#SBATCH -n 2\nsrun python t.py", "srun python t.py"]
)
def test_python_may_be_several_ranks(line: str) -> None:
    assert len(read(line, path="j.sbatch").launches) == 1


def test_exported_ranks_make_python_a_launch() -> None:
    reading = read("export MASTER_ADDR=n1 MASTER_PORT=29500\nWORLD_SIZE=4 RANK=$R python train.py")
    found = {c.quantity: c for c in reading.claims if c.source == "environment" and c.quantity[:4] != "env."}
    assert found["master_addr"].value == Known("n1")
    assert found["master_addr"].strength is Strength.ENVIRONMENT
    assert found["master_addr"].span.line == 1
    assert found["world_size"].relation is Relation.REQUIRES
    assert "R" in why(found["rank"])


def test_unexported_variables_are_not_inherited() -> None:
    reading = read("NCCL_DEBUG=INFO\nexport NCCL_IB_DISABLE=1\nGLOO_X=1 torchrun t.py")
    assert set(values(reading, environment=True)) == {"env.NCCL_IB_DISABLE", "env.GLOO_X"}


def test_env_adds_variables_and_containers_drop_them() -> None:
    assert values(read("env NCCL_DEBUG=INFO torchrun t.py"), environment=True) == {"env.NCCL_DEBUG": "INFO"}
    kept = read("export NCCL_DEBUG=INFO A=1\ndocker run -e NCCL_DEBUG -e B=2 img torchrun t.py")
    assert values(kept, environment=True) == {"env.NCCL_DEBUG": "INFO", "env.B": "2"}


def test_mpi_counts() -> None:
    found = values(read("mpirun -np 8 -H a:4,b:4 -x NCCL_DEBUG=INFO python train.py"), source="mpirun")
    assert (found["tasks"], found["tasks_per_node"], found["hosts"], found["nodes"]) == (8, 4, ("a", "b"), 2)
    assert values(read("mpirun -n 8 -ppn 4 python t.py"), source="mpirun")["tasks_per_node"] == 4
    reading = read("horovodrun -np 4 -hostfile hf python t.py")
    assert reading.launches[0].launcher == "horovodrun"
    assert ("hf", "hostfile") in {(r.target, r.role) for r in reading.references}


def test_the_context_of_the_ranks() -> None:
    script = "module load cuda\nsource venv/bin/activate\nsrun --container-image=nvcr.io#a:1 torchrun t.py"
    reading = read(script)
    assert only(reading, "container").value == Known("pyxis nvcr.io#a:1")
    assert only(reading, "interpreter").value == Known("venv/bin/python")
    assert [c.spelling for c in reading.claims if c.quantity == "prelude"] == [
        "module load cuda",
        "source venv/bin/activate",
    ]
    assert only(read("/opt/e/bin/torchrun t.py"), "interpreter").value == Known("/opt/e/bin/python")


def test_programs_are_found_where_the_line_runs() -> None:
    assert read("cd sub\ntorchrun t.py", sub__t_dot_py="").launches[0].program == "sub/t.py"
    assert read("torchrun tools/t.py", path="scripts/run.sh", tools__t_dot_py="").launches[0].program == "tools/t.py"


@pytest.mark.parametrize("where", ["$PWD", "$(pwd)", "$SLURM_SUBMIT_DIR", '"$(dirname "$0")"'])
def test_the_start_directory_leads_into_the_tree(where: str) -> None:
    reading = read(f"deepspeed --hostfile {where}/hf {where}/t.py --deepspeed_config={where}/ds.json", path="a/run.sh")
    assert {(r.target, r.role) for r in reading.references if r.role != "data"} == {
        ("a/hf", "hostfile"),
        ("a/t.py", "script"),
        ("a/ds.json", "config"),
    }


def test_all_alternative_programs_are_references() -> None:
    script = "if [ -d src ]; then P=src/a.py; else P=./b.py; fi\ntorchrun $P"
    reading = read(script, b_dot_py="x = 1\n")
    assert only(reading, "script").value == OneOf(("src/a.py", "b.py"))
    assert [r.target for r in reading.references] == ["b.py"]
    assert reading.launches[0].program == ""


def test_secrets_are_named_and_never_shown() -> None:
    secret = "s3cr3t-value-1"
    reading = read(
        f'export WANDB_API_KEY={secret}\nexport AUTH_HEADER="Bearer $WANDB_API_KEY"\n'
        f"HF_TOKEN={secret} torchrun --nnodes=2 t.py --wandb_key {secret} --x $WANDB_API_KEY"
        f' --url https://me:{secret}@host/x --header "Bearer {secret}" # {secret}'
    )
    assert why(only(reading, "env.WANDB_API_KEY")) == "redacted"
    assert only(reading, "env.HF_TOKEN").spelling == "HF_TOKEN=****"
    assert secret not in repr(reading)


def test_a_comment_suppresses_its_line_or_the_next() -> None:
    reading = read(
        "# preflight: ignore[WLD001] on purpose\n\ntorchrun t.py\ntorchrun u.py # preflight: ignore[a-name, B1]"
    )
    assert [(s.line, s.names, s.reason) for s in reading.suppressions] == [
        (3, ("WLD001",), "on purpose"),
        (4, ("a-name", "B1"), ""),
    ]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("# preflight: ignore[A1] why\ntorchrun \\\n --nnodes=2 \\\n t.py\ntrue", [2, 3, 4]),
        ("true\ntorchrun \\\n --nnodes=2 \\\n t.py # preflight: ignore[A1] why\ntrue", [4, 2, 3]),
        ("# preflight: ignore[A1] why\r\ntorchrun \\\r\n t.py\r\ntrue", [2, 3]),
    ],
    ids=["above", "at the end", "carriage returns"],
)
def test_a_comment_applies_to_all_lines_of_a_continued_command(text: str, lines: list[int]) -> None:
    assert [s.line for s in read(text).suppressions] == lines


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00",
        "torchrun",
        "torchrun --nnodes",
        "srun",
        "srun -N",
        "env",
        "python",
        "python -m",
        "mpirun -np",
        "timeout",
        "docker run",
        "ssh",
        "torchrun --nnodes= t.py",
        "deepspeed --include ''",
        "torchrun --nnodes=a:b:c t.py",
        "srun -N x-y torchrun t.py",
        "torchrun --rdzv_endpoint=: t.py",
        "fleetrun --servers= --workers= t.py",
        "mpirun -H a:x,b python t.py",
        "#SBATCH -N\n#SBATCH --time=a:b:c:d:e",
    ],
)
def test_meaningless_input_does_not_crash(text: str) -> None:
    read(text.replace("\x00", "�"))


@pytest.mark.parametrize(
    "script",
    [
        "A=8 B=3\ntorchrun --nnodes=$A train.py",
        "A=8 B=3\r\ntorchrun --nnodes=$A train.py",
        "A=8 B=3\n\n# how many\nC=1 D=2\ntorchrun --nnodes=$A train.py",
        "A=8 B=3\nexport A\ntorchrun --nnodes=$A train.py",
    ],
)
def test_assignments_on_their_own_line_are_not_prefixes_of_the_next_command(script: str) -> None:
    nodes = only(read(script), "nodes")
    assert nodes.value == Known(8)
    assert read(script).launches[0].id == f"run.sh:{nodes.span.line}"


def test_assignments_on_their_own_line_do_not_reach_the_next_command() -> None:
    assert read("RANK=0 WORLD_SIZE=2\npython train.py").launches == ()
    assert values(read("RANK=0 WORLD_SIZE=2 \\\n  python train.py"))["world_size"] == 2


def test_mpirun_parameters_are_claimed_as_variables() -> None:
    reading = read("mpirun -np 4 -mca btl_tcp_if_include eth0 --mca btl ^openib -H a:2,b:2 python train.py")
    assert only(reading, "env.OMPI_MCA_btl_tcp_if_include").value == Known("eth0")
    assert only(reading, "env.OMPI_MCA_btl").value == Known("^openib")
    assert only(reading, "mpi_implementation").value == Known("openmpi")
    assert [c.value for c in reading.claims if c.quantity == "host_slots"] == [Known(2), Known(2)]


def test_variables_of_intel_mpi_reach_the_ranks_in_both_spellings() -> None:
    reading = read("mpiexec.hydra -genv A 1 -genv B=2 -ppn 4 -n 8 python train.py")
    assert values(reading, environment=True) == {"env.A": "1", "env.B": "2"}
    assert only(reading, "mpi_implementation").value == Known("mpich")
    assert only(reading, "tasks_per_node").value == Known(4)
    assert only(reading, "script").value == Known("train.py")


def test_another_program_after_mpirun_is_a_launch_when_several_start() -> None:
    assert read("mpirun -np 16 --hostfile h ./all_reduce_perf -g 1").launches[0].launcher == "mpirun"
    assert read("mpirun -np 1 ./all_reduce_perf").launches == ()
    assert read("mpirun -np 4 hostname").launches == ()


def test_options_of_horovodrun() -> None:
    reading = read("horovodrun -np 4 --min-np 2 --max-np 8 --gloo --network-interface eth0 -H a:2,b:2 python t.py")
    said = values(reading, source="horovodrun")
    assert (said["tasks"], said["min_tasks"], said["max_tasks"], said["controller"]) == (4, 2, 8, "gloo")
    assert only(reading, "env.NCCL_SOCKET_IFNAME").value == Known("eth0")


def test_limits_are_noted() -> None:
    many = read("torchrun --nproc_per_node=2 t.py\n" * 105)
    assert len(many.launches) == 100
    assert [note.span.line for note in many.notes if "launches were read" in note.message] == [101]
    exports = "".join(f"export V{number}=1\n" for number in range(310))
    assert any("variables of this launch" in note.message for note in read(f"{exports}torchrun t.py\n").notes)


@pytest.mark.parametrize(
    "line",
    [
        "python submit.py --gpus 8 -- torchrun --nproc_per_node 4 t.py",
        r"python submit.py --nodes 2 -- source setup.sh \&\& uv run torchrun --nproc_per_node 4 t.py",
    ],
)
def test_a_launcher_that_a_script_submits(line: str) -> None:
    (launch,) = read(line).launches
    assert (launch.launcher, launch.program) == ("torchrun", "t.py")


@pytest.mark.parametrize("starter", ["mpiexec.openmpi", "mpirun.mpich", "mpiexec.hydra"])
def test_every_name_of_mpirun_starts_ranks_and_shells(starter: str) -> None:
    (launch,) = read(f"{starter} -n 4 sh -c 'torchrun --nnodes 4 --node-rank $OMPI_COMM_WORLD_RANK t.py'").launches
    assert (launch.launcher, launch.wrappers) == ("torchrun", ("mpirun",))


def test_a_launcher_with_a_subcommand_is_found_behind_an_unknown_wrapper() -> None:
    reading = read("srun wrapper exec accelerate launch --num_processes=4 --num_machines=1 t.py")
    assert [launch.launcher for launch in reading.launches] == ["accelerate"]
    assert read("wrapper exec accelerate config --num_processes=4").launches == ()


def test_a_script_before_a_launcher_is_a_wrapper_of_the_launch() -> None:
    (launch,) = read("srun ./bind.sh torchrun --nproc_per_node=4 t.py").launches
    assert launch.wrappers == ("srun", "bind.sh")


# Where the value of a claim was assigned, when its word only names a variable.


_LINE = "torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d"


@pytest.mark.parametrize(
    ("script", "quantity", "line"),
    [
        ("N=8\ntorchrun --nnodes=$N train.py", "nodes", 1),
        ("N=8\ntorchrun --nnodes ${N} train.py", "nodes", 1),
        ('N=8\ntorchrun --nnodes="${N:-2}" train.py', "nodes", 1),
        ("N=8\nM=$N\nexport L=${M}\ntorchrun --nnodes=$L train.py", "nodes", 1),
        ("N=4\nN=8\ntorchrun --nnodes=$N train.py", "nodes", 2),
        (f"HOST=n1\n{_LINE} --rdzv_endpoint=$HOST:29500 train.py", "master_addr", 1),
        (f"HOST=n1\n{_LINE} --rdzv_endpoint=$HOST:29500 train.py", "rendezvous_endpoint", 1),
        (f"PORT=29500\n{_LINE} --rdzv_endpoint=n1:$PORT train.py", "master_port", 1),
        ("H=n1\nexport MASTER_ADDR=$H RANK=0\npython train.py", "env.MASTER_ADDR", 1),
        ("N=2\nsrun -N $N bash -c 'torchrun --nnodes=2 train.py'", "nodes", 1),
    ],
)
def test_the_assignment_is_the_origin(script: str, quantity: str, line: int) -> None:
    origins = {c.origin.line if c.origin else None for c in read(script).claims if c.quantity == quantity}
    assert line in origins


@pytest.mark.parametrize(
    ("script", "quantity"),
    [
        ("torchrun --nnodes=8 train.py", "nodes"),
        ("torchrun --nnodes=${N:-8} train.py", "nodes"),
        ("torchrun --nnodes=$N train.py", "nodes"),
        ("A=4\nB=2\ntorchrun --nnodes=$((A * B)) train.py", "nodes"),
        ("A=1\nB=6\ntorchrun --nnodes=$A$B train.py", "nodes"),
        ('if [ -n "$X" ]; then N=2; else N=4; fi\ntorchrun --nnodes=$N train.py', "nodes"),
        (f"HOST=n1\n{_LINE} --rdzv_endpoint=$HOST:29500 train.py", "master_port"),
    ],
)
def test_a_value_without_a_single_assignment_has_no_origin(script: str, quantity: str) -> None:
    assert only(read(script), quantity).origin is None


def test_a_secret_in_the_line_of_the_assignment_is_hidden() -> None:
    claim = only(read("N=8; WANDB_API_KEY=0123456789abcdef0123\ntorchrun --nnodes=$N train.py"), "nodes")
    assert claim.origin is not None
    assert "0123456789abcdef" not in claim.origin.snippet


# Resources that `docker run` gives a container.


def _claims(line: str) -> dict[str, Claim]:
    file = SourceFile("run.sh", line + "\n", "", len(line))
    found = ShellSource().read(file, MemoryTree({"run.sh": line})).claims
    names = ("container_", "shm_mib", "pod_", "host_path", "gpus_per_node")
    return {claim.quantity: claim for claim in found if claim.quantity.startswith(names)}


def test_a_container_around_a_launch_has_its_scope() -> None:
    claims = _claims(
        "docker run --gpus '\"device=0,1\"' --shm-size=8g --net=host img:1 torchrun --nproc_per_node=2 t.py"
    )
    assert claims["container_run"].value == Known("img:1")
    assert claims["container_run"].scope.launch == "run.sh:1"
    assert claims["gpus_per_node"].value == Known(2)
    assert claims["shm_mib"].value == Known(8192)
    assert claims["container_network"].value == Known("host")
    assert claims["container_command"].value == Known("torchrun --nproc_per_node=2 t.py")


def test_a_launch_in_an_inner_shell_is_found() -> None:
    claims = _claims("docker run --gpus all --ipc host img bash -c 'cd /w && torchrun --nproc_per_node=2 t.py'")
    assert claims["container_gpus"].value == Known("all")
    assert isinstance(claims["shm_mib"].value, Unresolved)
    assert "gpus_per_node" not in claims


@pytest.mark.parametrize(
    "given",
    [
        "--gpus all",
        "--runtime=nvidia",
        "--runtime habana",
        "--device /dev/nvidia0",
        "--device=/dev/kfd --device=/dev/dri",
        "--device nvidia.com/gpu=all",
        "--privileged",
        "-e A=b $MORE",
    ],
)
def test_options_that_provide_gpus(given: str) -> None:
    assert "container_gpus" in _claims(f"docker run -it {given} img python train.py")


def test_nvidia_docker_and_apptainer() -> None:
    assert _claims("nvidia-docker run img python train.py")["container_gpus"].value == Known("nvidia-docker")
    assert "container_gpus" in _claims("apptainer exec --nv i.sif python train.py")
    assert "container_gpus" in _claims("export APPTAINER_NV=1\napptainer exec i.sif python train.py")
    assert "container_gpus" not in _claims("singularity exec i.sif python train.py")


def test_a_missing_option_claims_nothing() -> None:
    claims = _claims("docker run --rm img python train.py")
    assert set(claims) == {"container_run", "container_command"}


@pytest.mark.parametrize("line", ["docker exec -it box python train.py", "echo docker run img", "docker build ."])
def test_commands_that_start_no_container(line: str) -> None:
    assert _claims(line) == {}


@pytest.mark.parametrize(("written", "size"), [("8g", 8192), ("512m", 512), ("1GB", 1024), (str(64 * 1024**2), 64)])
def test_sizes(written: str, size: int) -> None:
    assert mebibytes(written) == size


def test_invalid_sizes() -> None:
    with pytest.raises(ValueError, match="not a size"):
        mebibytes("much")


def test_a_container_that_ssh_starts_is_one_wrapper() -> None:
    line = "ssh n0 docker run --gpus all img bash -c 'torchrun --nproc_per_node=2 t.py'\n"
    (launch,) = ShellSource().read(SourceFile("run.sh", line, "", len(line)), MemoryTree({"run.sh": line})).launches
    assert launch.wrappers == ("ssh", "docker")


# Launchers of single frameworks: composer, fabric, colossalai, torchx, ray; after parallel shells and in defaults.


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
