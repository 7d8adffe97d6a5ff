"""The plans of the jobs below: values and locations."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from preflight import api
from preflight._util.json_output import to_bytes
from preflight.cli.main import run
from preflight.commands.plan.job_plan import LaunchPlan, Place, Plan, schema
from preflight.commands.plan.plan_pages import (
    changes_between,
    changes_markdown,
    changes_page,
    html,
    markdown,
    page,
    request_of,
    size_of,
)
from preflight.config.resolve import jobs_in
from preflight.reporters.base import Style
from tests.builders import DOCS

MEGATRON = """#!/bin/bash
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
#SBATCH --time=12:00:00
export NCCL_SOCKET_IFNAME=ib0
export TOKENIZERS_PARALLELISM=false
srun torchrun --nnodes=4 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=node1:29500 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000 \\
  --tensor-model-parallel-size 4 --pipeline-model-parallel-size 2 --micro-batch-size 1 --global-batch-size 128 \\
  --use-distributed-optimizer --data-path /data/corpus --save /ckpt/run1
"""


def plan_of(folder: Path, text: str, name: str = "run.sh", variables: dict[str, str] | None = None) -> Plan:
    """The plan of one file."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    (folder / "train.py").write_text("import torch\n")
    return api.plan([folder / name], root=folder, variables=variables)


def launch_of(plan: Plan) -> LaunchPlan:
    """The only launch of a plan."""
    (launch,) = plan.jobs[0].launches
    return launch


@pytest.fixture
def megatron(tmp_path: Path) -> Plan:
    return plan_of(tmp_path, MEGATRON, "job.sbatch")


def test_ranks_by_node(megatron: Plan) -> None:
    launch = launch_of(megatron)
    assert size_of(launch) == "32 ranks on 4 nodes"
    assert [(row.node, row.ranks, row.local_ranks, row.devices) for row in launch.ranks] == [
        ("0", "0-7", "0-7", "GPU 0-7"),
        ("1", "8-15", "0-7", "GPU 0-7"),
        ("2", "16-23", "0-7", "GPU 0-7"),
        ("3", "24-31", "0-7", "GPU 0-7"),
    ]


def test_the_grid_has_megatrons_order(megatron: Plan) -> None:
    grid = launch_of(megatron).grid
    assert grid is not None
    assert grid.equation == "4 DP x 2 PP x 4 TP = 32 ranks"
    # Tensor-parallel ranks are neighbours, and the stages of a pipeline are half of the ranks apart.
    assert grid.cells == (("0-3", "4-7", "8-11", "12-15"), ("16-19", "20-23", "24-27", "28-31"))


def test_a_very_large_grid_is_not_drawn(tmp_path: Path) -> None:
    many = MEGATRON.replace("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 8000000")
    plan = plan_of(tmp_path, many.replace("=4 --nproc", "=4000000 --nproc").replace("--nodes=4", "--nodes=4000000"))
    grid = plan.jobs[0].launches[0].grid
    assert grid is not None and grid.equation == "1 DP x 8000000 PP x 4 TP = 32000000 ranks"
    assert grid.cells == () and len(to_bytes(plan, indent=2)) < 50_000


def test_the_batch_is_an_equation(megatron: Plan) -> None:
    batch = launch_of(megatron).batch
    assert batch is not None and batch.holds
    assert batch.equation == "128 samples = 1 micro batch x 32 accumulation x 4 data-parallel ranks"


def test_the_memory_of_a_gpu_has_parts(megatron: Plan) -> None:
    parts = {part.name: part.size_bytes for part in launch_of(megatron).memory}
    parameters = 32 * (4 * 4096**2 + 8 * 4096**2) + 32000 * 4096
    assert parts["weights"] == parameters // 8 * 2
    assert parts["optimizer states"] == parameters // 8 * 12 // 4
    # The first of two stages holds half of the layers for two micro batches.
    assert parts["activations"] == 32 * 4096 * 4096 * (10 + 24 // 4)


def test_endpoints(megatron: Plan) -> None:
    (endpoint,) = launch_of(megatron).endpoints
    assert (endpoint.address, endpoint.purpose) == ("node1:29500", "rendezvous (c10d)")
    assert endpoint.place == Place("job.sbatch", 7)


def test_variables_interfaces_and_paths_have_locations(megatron: Plan) -> None:
    launch = launch_of(megatron)
    assert [(one.name, one.value, one.place.line) for one in launch.variables] == [
        ("TOKENIZERS_PARALLELISM", "false", 6)
    ]
    assert [(one.name, one.value, one.place.line) for one in launch.interfaces] == [("NCCL_SOCKET_IFNAME", "ib0", 5)]
    assert {one.name: one.value for one in launch.paths} == {
        "data_path": "/data/corpus",
        "checkpoint_path": "/ckpt/run1",
    }


def test_the_request_and_its_cost(tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(MEGATRON)
    plan = api.plan([tmp_path / "job.sbatch"], root=tmp_path, price_per_gpu_hour=2.0)
    assert (
        request_of(plan.jobs[0].request) == "4 nodes x 8 GPUs x 12 h = 384 GPU-hours at most, 768.00 at the given price"
    )


def test_overridden_values(tmp_path: Path) -> None:
    launch = launch_of(plan_of(tmp_path, MEGATRON.replace("--nnodes=4", "--nnodes=8"), "job.sbatch"))
    assert launch.nodes is not None
    assert (launch.nodes.value, launch.nodes.place.line) == ("8", 7)
    assert [(one.spelling, one.place.line) for one in launch.nodes.overrides] == [("--nodes=4", 2)]


OPEN = "torchrun --nnodes=$NNODES --nproc_per_node=8 --master_addr=$HEAD --master_port=29500 train.py\n"


def test_open_quantities_are_named_with_the_deciding_option(tmp_path: Path) -> None:
    launch = launch_of(plan_of(tmp_path, OPEN))
    assert [(row.node, row.ranks) for row in launch.ranks] == [("i", "8i to 8i+7")]
    assert size_of(launch) == "8 on each node; the number of nodes is unknown"
    assert {(one.name, one.decided_by) for one in launch.open} == {
        ("nodes", "--set NNODES=..."),
        ("master_addr", "--set HEAD=..."),
    }


@pytest.mark.parametrize(
    ("line", "decided_by"),
    [
        ("torchrun --nnodes=${NNODES:?} --nproc_per_node=8 train.py", "--set NNODES=..."),
        ("[ -z $X ] || NNODES=4\ntorchrun --nnodes=$NNODES --nproc_per_node=8 train.py", "--set NNODES=..."),
        ("torchrun --nnodes=$(wc -l < hosts) --nproc_per_node=8 train.py", ""),
        ("torchrun --nnodes=$(./ask the caller $NNODES) --nproc_per_node=8 train.py", ""),
    ],
    ids=["required", "branch", "command", "text about the caller"],
)
def test_only_a_variable_of_the_caller_decides_a_quantity(tmp_path: Path, line: str, decided_by: str) -> None:
    launch = launch_of(plan_of(tmp_path, f"{line}\n"))
    assert [one.decided_by for one in launch.open if one.name == "nodes"] == [decided_by]


def test_given_variables_set_open_quantities(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, OPEN, variables={"NNODES": "2", "HEAD": "gpu1"})
    launch = launch_of(plan)
    assert launch.open == ()
    assert size_of(launch) == "16 ranks on 2 nodes"
    assert [one.address for one in launch.endpoints] == ["gpu1:29500"]
    assert plan.given == ("HEAD=gpu1", "NNODES=2")


def test_many_nodes_are_folded(tmp_path: Path) -> None:
    launch = launch_of(plan_of(tmp_path, "torchrun --nnodes=512 --nproc_per_node=8 --master_addr=a train.py\n"))
    (row,) = launch.ranks
    assert (row.node, row.ranks, row.local_ranks) == ("0-511", "0-4095", "0-7 on each")


def test_hosts_with_their_own_slots(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("gpu1 slots=4\ngpu2 slots=2\n")
    (tmp_path / "run.sh").write_text("deepspeed --hostfile hostfile train.py --deepspeed\n")
    (tmp_path / "train.py").write_text("import deepspeed\n")
    launch = launch_of(api.plan([tmp_path / "run.sh"], root=tmp_path))
    assert [(row.host, row.ranks, row.local_ranks) for row in launch.ranks] == [
        ("gpu1", "0-3", "0-3"),
        ("gpu2", "4-5", "0-1"),
    ]


SERVERS = """export PADDLE_PSERVERS_IP_PORT_LIST=10.0.0.1:6000,10.0.0.2:6000
export PADDLE_TRAINER_ENDPOINTS=10.0.0.3:6001,10.0.0.4:6001
export PADDLE_TRAINERS_NUM=2
TRAINING_ROLE=PSERVER POD_IP=10.0.0.2 PADDLE_PORT=6000 python train.py &
TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=1 python train.py
"""


def test_a_process_of_a_parameter_server_job_is_named_by_its_role(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, SERVERS)
    assert [size_of(launch) for launch in plan.jobs[0].launches] == ["parameter server 1", "trainer 1"]
    assert [launch.ranks[0].host for launch in plan.jobs[0].launches] == ["10.0.0.2:6000", "10.0.0.4:6001"]


def test_the_json_follows_its_schema(megatron: Plan) -> None:
    jsonschema.validate(json.loads(to_bytes(megatron, indent=2)), schema())
    committed = (DOCS / "plan.schema.json").read_text()
    assert committed == json.dumps(schema(), indent=2, sort_keys=True) + "\n", "run `make schema`"


def test_every_format_has_the_main_facts(megatron: Plan) -> None:
    for text in (page(megatron, Style()), markdown(megatron).replace("\\", ""), html(megatron).decode()):
        for said in ("32 ranks on 4 nodes", "4 DP x 2 PP x 4 TP = 32 ranks", "node1:29500", "NCCL_SOCKET_IFNAME=ib0"):
            assert said in text


def test_hostile_text_is_escaped(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, "export A='<script>alert(1)</script>|`x`'\n" + OPEN)
    assert "<script>alert" not in html(plan).decode()
    row = next(line for line in markdown(plan).splitlines() if "script" in line)
    assert "<script>" not in row and row.count(" | ") == 2


SECRET = "correct-horse-battery"
USES_SECRET = """#!/bin/bash
#SBATCH --nodes=2
export NOTE="x$WANDB_API_KEY"
torchrun --nnodes=2 --rdzv_id=$WANDB_API_KEY --rdzv_endpoint=h$WANDB_API_KEY:12 $WANDB_API_KEY.py --x a$WANDB_API_KEY.b
"""


@pytest.mark.parametrize(
    ("command", "form"),
    [
        *((command, form) for command in ("plan", "plan -v") for form in ("text", "json", "html", "markdown")),
        *(("lint -vv --profile pedantic --no-cache", form) for form in ("text", "json", "html", "sarif")),
    ],
)
def test_a_given_secret_is_hidden(command: str, form: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It is hidden by its variable's name wherever the script uses it, and by its form under any name."""
    (tmp_path / "run.sh").write_text(USES_SECRET)
    token = "hf_" + "Ab3" * 8
    given = ("--set", f"WANDB_API_KEY={SECRET}", "--set", f"X={token}", "--set", "N=2")
    run([*command.split(), str(tmp_path / "run.sh"), *given, "-o", form])
    said = capfd.readouterr()
    assert "run.sh" in said.out
    assert SECRET not in said.out + said.err and token not in said.out + said.err


def test_a_secret_in_the_name_of_a_missing_file_is_hidden(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(USES_SECRET.replace("export", f"export WANDB_API_KEY={SECRET}\nexport"))
    (job,) = jobs_in([tmp_path / "run.sh"], root=tmp_path)
    assert "****.py" in {reference.target for reference in job.references}
    assert SECRET not in repr(job)


def unreadable(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "second.sh").write_bytes(b"srun x\0\ntorchrun --nnodes=8 train.py\n")
    return folder


def test_unread_files_are_never_called_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("old", "new", "both"):
        plan_of(tmp_path / name, OPEN)
    for name in ("new", "both"):
        unreadable(tmp_path / name)
    assert run(["plan", "old", "new"]) == 3
    assert "a NUL byte" in capsys.readouterr().out
    # The same words in both files, which may have different values.
    assert run(["plan", "both", "new"]) == 3
    assert run(["plan", "both", "new", "-o", "markdown"]) == 3
    assert "Nothing changes" not in capsys.readouterr().out


def test_a_plan_of_only_unread_files_names_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = unreadable(tmp_path / "all")
    assert run(["plan", str(folder), "--root", str(folder)]) == 3
    assert "second.sh is not text" in capsys.readouterr().out


def test_changes_are_listed_by_launch(tmp_path: Path) -> None:
    old = plan_of(tmp_path / "old", MEGATRON, "job.sbatch")
    # A line that moves changes nothing for the ranks.
    assert (
        changes_between(old, plan_of(tmp_path / "moved", MEGATRON.replace("\nexport", "\n\nexport", 1), "job.sbatch"))
        == ()
    )
    new = plan_of(tmp_path / "new", MEGATRON.replace("=ib0", "=eth0").replace("=4 --nproc", "=2 --nproc"), "job.sbatch")
    found = {change.what: (change.before, change.after) for change in changes_between(old, new)}
    assert found["size"] == ("32 ranks on 4 nodes", "16 ranks on 2 nodes")
    assert found["variable NCCL_SOCKET_IFNAME"] == ("ib0", "eth0")
    assert "grid" in found and "arguments" not in found
    text = changes_page(changes_between(old, new), Style())
    assert "- 32 ranks on 4 nodes" in text and "+ 16 ranks on 2 nodes" in text
    assert "| `32 ranks on 4 nodes` | `16 ranks on 2 nodes` |" in changes_markdown(changes_between(old, new))


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "run.sh"], 0),
        (["plan", "notes.txt"], 4),
        (["plan", "run.sh", "--set", "NNODES"], 2),
        (["plan", "run.sh", "--changes"], 2),
        (["plan", "run.sh", "-o", "sarif"], 2),
        (["plan", "old", "new"], 1),
        (["plan", "old", "old"], 0),
    ],
)
def test_the_command_and_its_exit_codes(
    arguments: list[str], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    plan_of(tmp_path, OPEN)
    plan_of(tmp_path / "old", MEGATRON)
    plan_of(tmp_path / "new", MEGATRON.replace("--nnodes=4", "--nnodes=8"))
    (tmp_path / "notes.txt").write_text("nothing\n")
    assert run(arguments) == code


# --- behaviour of launchers beyond their options, each observed in a real run (tests/agreement) ---


def rows_of(launch: LaunchPlan) -> list[tuple[str, str, str, str]]:
    """Host, ranks, local ranks and devices of every row."""
    return [(row.host, row.ranks, row.local_ranks, row.devices) for row in launch.ranks]


def test_deepspeed_numbers_ranks_and_does_not_pass_all_variables(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("a1 slots=2\na2 slots=3\n")
    (tmp_path / ".deepspeed_env").write_text("FROM_FILE=1\n")
    text = "export NCCL_DEBUG=INFO MY_FLAG=1\ndeepspeed --hostfile hostfile --include a1:1@a2:0,2 train.py --lr 1\n"
    launch = launch_of(plan_of(tmp_path, text))
    # The launcher takes the global rank modulo the processes of a node.
    assert rows_of(launch) == [("a1", "0", "0", "GPU 1"), ("a2", "1-2", "1, 0", "GPU 2,0")]
    assert launch.rank_arguments == ("--local_rank={local_rank}",)
    assert launch.kept_variables == ("MY_FLAG",)
    assert launch.world_size is not None and launch.world_size.value == "3"


def test_deepspeed_without_hosts_starts_its_ranks_here(tmp_path: Path) -> None:
    launch = launch_of(plan_of(tmp_path, "deepspeed --num_gpus 2 --no_local_rank train.py\n"))
    assert [(row.node, row.ranks) for row in launch.ranks] == [("0", "0-1")]
    assert launch.nodes is not None and launch.nodes.spelling == "deepspeed (without --hostfile)"
    assert launch.world_size is not None and launch.world_size.value == "2"
    assert launch.rank_arguments == () and launch.kept_variables == ()


def test_hundreds_of_hosts_share_a_row(tmp_path: Path) -> None:
    (tmp_path / "hostfile").write_text("".join(f"n{number} slots=8\n" for number in range(300)))
    launch = launch_of(plan_of(tmp_path, "deepspeed --hostfile hostfile train.py\n"))
    assert rows_of(launch) == [("n0 to n299", "0-2399", "0-7 on each", "GPU 0-7")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("-H a:2,b:2", [("a", "0-1", "0-1", ""), ("b", "2-3", "0-1", "")]),
        ("-H a,a,b,b --map-by node", [("a", "0, 2", "0-1", ""), ("b", "1, 3", "0-1", "")]),
        ("-H a:3,b:1 -np 4 --map-by node", [("a", "0, 2, 3", "0-2", ""), ("b", "1", "0", "")]),
        ("-H a:3,b:3 --map-by ppr:2:node", [("a", "0-1", "0-1", ""), ("b", "2-3", "0-1", "")]),
        ("-H a:3,b:3 -np 4", [("a", "0-2", "0-2", ""), ("b", "3", "0", "")]),
    ],
)
def test_mpirun_fills_hosts_as_it_maps(options: str, expected: list[tuple[str, ...]], tmp_path: Path) -> None:
    launch = launch_of(plan_of(tmp_path, f"mpirun --allow-run-as-root {options} python train.py\n"))
    assert rows_of(launch) == expected


def test_mpirun_passes_only_selected_variables(tmp_path: Path) -> None:
    text = "export NCCL_SOCKET_IFNAME=ib0 KEPT=1 OMPI_MCA_btl=tcp\nmpirun {} -x NCCL_SOCKET_IFNAME python train.py\n"
    launch = launch_of(plan_of(tmp_path, text.format("-np 4 -H a:2,b:2")))
    assert launch.kept_variables == ("KEPT",)
    assert "KEPT=1, not passed to other hosts" in page(plan_of(tmp_path, text.format("-H a:2,b:2")), Style())
    assert launch_of(plan_of(tmp_path, text.format("-np 4 -H localhost:4"))).kept_variables == ()


@pytest.mark.parametrize(("controller", "world"), [("--gloo", "8"), ("--mpi", "7"), ("", "7")])
def test_gloo_fills_every_slot(controller: str, world: str, tmp_path: Path) -> None:
    text = f"horovodrun {controller} -np 7 -H a:4,b:4 python train.py\n"
    launch = launch_of(plan_of(tmp_path, text))
    assert launch.world_size is not None and launch.world_size.value == world
    assert launch.ranks[-1].ranks.endswith(str(int(world) - 1))


def test_only_slurm_knows_the_distribution_of_tasks(tmp_path: Path) -> None:
    text = "#!/bin/bash\n#SBATCH --nodes=2\n#SBATCH {}\nsrun python train.py\n"
    assert rows_of(launch_of(plan_of(tmp_path, text.format("--ntasks=6"), "a.sbatch"))) == [("", "0-5", "", "")]
    rows = rows_of(launch_of(plan_of(tmp_path, text.format("--ntasks-per-node=3"), "b.sbatch")))
    assert rows == [("", "0-2", "0-2", ""), ("", "3-5", "0-2", "")]


def test_paddle_uses_the_selected_devices(tmp_path: Path) -> None:
    launch = "python -m paddle.distributed.launch {} train.py\n"
    chosen = launch_of(plan_of(tmp_path, "export CUDA_VISIBLE_DEVICES=1,3,5\n" + launch.format("--gpus 5,1")))
    assert rows_of(chosen) == [("", "0-1", "0-1", "GPU 5,1")]
    visible = launch_of(plan_of(tmp_path, "export CUDA_VISIBLE_DEVICES=1,3,5\n" + launch.format("")))
    assert rows_of(visible) == [("", "0-2", "0-2", "GPU 1,3,5")]


_SPAWNS = """import argparse
import torch.multiprocessing as mp

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    mp.spawn(run, nprocs={count})

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize(
    ("count", "line", "ranks"),
    [
        ("4", "python spawns.py", ["0-3"]),
        ("args.workers", "python -m spawns", ["0-1"]),
        ("args.workers", "python spawns.py --lr 1 --workers 3", ["0-2"]),
        ("args.workers", "python spawns.py --workers=5", ["0-4"]),
        ("args.workers", "python spawns.py --workers $N", []),
        ("torch.cuda.device_count()", "python spawns.py", []),
    ],
)
def test_a_program_that_spawns_its_ranks_has_them(count: str, line: str, ranks: list[str], tmp_path: Path) -> None:
    (tmp_path / "spawns.py").write_text(_SPAWNS.format(count=count))
    launch = launch_of(plan_of(tmp_path, f"{line}\n"))
    assert [row.ranks for row in launch.ranks] == ranks


@pytest.mark.parametrize(
    ("bundles", "ranks"),
    [('[{"GPU": 1}] * 4', ["0-3"]), ('[{"GPU": 1} for _ in range(3)]', ["0-2"]), ("make()", []), ("[{}, {}]", ["0-1"])],
)
def test_a_placement_group_has_a_worker_for_each_bundle(bundles: str, ranks: list[str], tmp_path: Path) -> None:
    (tmp_path / "actors.py").write_text(
        f"import ray\nfrom ray.util.placement_group import placement_group\ngroup = placement_group({bundles})\n"
    )
    launch = launch_of(plan_of(tmp_path, "python actors.py\n"))
    assert [row.ranks for row in launch.ranks] == ranks
