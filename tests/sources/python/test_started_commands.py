"""Command lines that Python scripts start, and the inputs that programs take from theirs."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Scope, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python.python_source import PythonSource
from tests.sources.launchers.reading_lines import read, values


def reading(text: str, *, role: str = "", scope: Scope | None = None) -> Reading:
    tree = MemoryTree({"go.py": text})
    file = tree.read("go.py")
    assert isinstance(file, SourceFile)
    return PythonSource().read(file, tree, role=role) if scope is None else PythonSource().read(file, tree, scope=scope)


@pytest.mark.parametrize(
    "code",
    [
        'subprocess.run(["torchrun", "--nproc_per_node=4", "train.py"], check=True)',
        'n = 4\nos.system(f"torchrun --nproc_per_node={n} train.py --lr 1")',
        'a = ["torchrun", "--nproc_per_node", str(4), "train.py"]\nsubprocess.Popen(shlex.join(a), shell=True)',
        'c = ["torchrun"]\nc += ["--nproc_per_node=4"]\nc.append("train.py")\nc.extend(sys.argv[1:])\n'
        "subprocess.call(c)",
        'subprocess.run([sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=4", "train.py"])',
        'os.system(" ".join(["torchrun", "--nproc_per_node=4", "train.py"]))',
        'c = "torchrun --nproc_per_node=4 "\nc += "train.py"\nsubprocess.check_call(c, shell=True)',
        'os.execvp("torchrun", ["torchrun", "--nproc_per_node=4", "train.py"])',
        'subprocess.run("torchrun --nproc_per_node=4 train.py".split())',
        'subprocess.run(shlex.split("torchrun --nproc_per_node=4 train.py"))',
        'os.system("torchrun --nproc_per_node={} train.py".format(4))',
        'subprocess.run(["bash", "-c", "torchrun --nproc_per_node=4 train.py"])',
        'c = "torchrun --nproc_per_node=4 train.py"\nc = "; ".join(["cd /x", c])\nos.system(c)'.replace(
            "cd /x", "true"
        ),
        'def go(cmd, check=True):\n    subprocess.run(cmd, shell=True)\ngo("torchrun --nproc_per_node=4 train.py")',
        'from tools import run_command\nrun_command("torchrun --nproc_per_node=4 train.py")',
    ],
)
def test_launches(code: str) -> None:
    found = reading("import os, shlex, subprocess, sys\n" + code + "\n")
    assert [(launch.launcher, launch.program) for launch in found.launches] == [("torchrun", "train.py")]
    count = next(claim for claim in found.claims if claim.quantity == "processes_per_node")
    assert (count.value, count.span.path) == (Known(4), "go.py")


def test_a_loop_starts_each_rank() -> None:
    code = """import os, subprocess
for rank in range(2):
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "h"}
    subprocess.Popen(["python", "train.py"], env=env)
"""
    found = reading(code)
    assert [launch.concurrent for launch in found.launches] == [True, True]
    assert [claim.value for claim in found.claims if claim.quantity == "rank"] == [Known(0), Known(1)]


def test_other_calls_are_not_launches() -> None:
    for code in ('["pip", "install", "deepspeed"]', '["nvidia-smi"]', "make()", "[]"):
        assert reading(f"import subprocess\nimport torchrun\nsubprocess.run({code})\n").launches == ()


def test_a_training_program_that_starts_a_command_is_not_a_launcher() -> None:
    code = 'import subprocess\nsubprocess.run(["torchrun", "--nproc_per_node=4", "eval.py"])\n'
    for found in (reading(code, scope=Scope(launch="run.sh:1")), reading(code, role="module")):
        assert found.launches == ()
        assert not any(claim.quantity == "processes_per_node" for claim in found.claims)


HEAD = "import os, sys\nimport torch.distributed as dist\n"
GROUP = 'dist.init_process_group("gloo", init_method=f"tcp://h:{PORT}", rank=RANK, world_size=SIZE)\n'


def program(declared: str, rank: str, size: str, port: str) -> str:
    return HEAD + declared + GROUP.replace("RANK", rank).replace("SIZE", size).replace("PORT", port)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            program(
                "import argparse\np = argparse.ArgumentParser()\np.add_argument('-i', '--index', type=int)\n"
                "p.add_argument('--of', dest='size', type=int)\np.add_argument('--port')\nargs = p.parse_args()\n",
                "args.index",
                "args.size",
                "args.port",
            ),
            "python train.py -i 1 --of 2 --port=2345",
        ),
        (program("", "int(sys.argv[1])", "int(sys.argv[2])", "sys.argv[3]"), "python train.py 1 2 2345"),
        (
            program("", 'int(os.environ["ME"])', 'int(os.getenv("ALL", "1"))', "os.environ.get('P')"),
            "ME=1 ALL=2 P=2345 python train.py",
        ),
        (
            HEAD + "import click\n@click.command()\n@click.option('-r', '--rank', type=int)\n"
            "@click.option('--num-nodes', type=int)\n@click.option('--port')\n"
            "def main(rank, num_nodes, port):\n    "
            + GROUP.replace("RANK", "rank").replace("SIZE", "num_nodes").replace("PORT", "port"),
            "python train.py -r 1 --num-nodes 2 --port 2345",
        ),
        (
            program(
                "from absl import flags\nF = flags.FLAGS\nflags.DEFINE_integer('task', 0, '')\n"
                "flags.DEFINE_integer('tasks', 1, '')\nflags.DEFINE_string('port', '', '')\n",
                "F.task",
                "F.tasks",
                "F.port",
            ),
            "python train.py --task=1 --tasks=2 --port 2345",
        ),
        (
            program(
                "from dataclasses import dataclass\nfrom transformers import HfArgumentParser\n@dataclass\nclass A:\n"
                "    who: int = 0\n    num: int = 1\n    port: str = ''\n"
                "(a,) = HfArgumentParser(A).parse_args_into_dataclasses()\n",
                "a.who",
                "a.num",
                "a.port",
            ),
            "python train.py --who 1 --num 2 --port 2345",
        ),
        (
            HEAD
            + "from options import args\ndef start(r, n, port):\n    "
            + GROUP.replace("RANK", "r").replace("SIZE", "n").replace("PORT", "port")
            + "start(args.rank_of_all, args.how_many, args.port)\n",
            "python train.py --rank-of-all 1 --how_many 2 --port 2345",
        ),
    ],
    ids=["argparse", "argv", "environment", "click", "absl", "dataclass", "other file"],
)
def test_a_program_receives_its_rank(text: str, line: str) -> None:
    found = read(line + "\n", train_dot_py=text)
    assert [launch.launcher for launch in found.launches] == ["python"]
    given = values(found)
    assert (given["rank"], given["world_size"], given["master_port"]) == (1, 2, 2345)


def test_a_changed_argument_is_not_the_number_of_ranks() -> None:
    text = program("args.size = args.size * 8\n", "args.rank", "args.size", "args.port")
    given = values(read("torchrun --nproc_per_node 8 train.py --size 2 --rank 1\n", train_dot_py=text))
    assert "world_size" not in given
    assert given["rank"] == 1


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ('n = os.environ["GPUS"]', "$GPUS, which the caller sets"),
        ('n = int(os.getenv("GPUS", 8))', "$GPUS, which the caller sets"),
        (
            'p.add_argument("--num-gpus")\nn = p.parse_args().num_gpus',
            "p.parse_args().num_gpus: known only at run time",
        ),
        ('p.add_argument("--num-gpus")\nargs = p.parse_args()\nn = args.num_gpus', "the value of `--num-gpus`"),
        ("n = config.GPUS", "`config.GPUS`: known only at run time"),
    ],
)
def test_an_unknown_size_names_what_sets_it(code: str, reason: str) -> None:
    found = reading(f'import os\n{code}\nos.system(f"torchrun --nproc_per_node={{n}} train.py")\n')
    value = next(claim.value for claim in found.claims if claim.quantity == "processes_per_node")
    assert isinstance(value, Unresolved)
    assert value.why == reason


def test_an_argument_of_a_function_is_named() -> None:
    found = reading('import os\ndef go(n):\n    os.system(f"torchrun --nproc_per_node={n} train.py")\n')
    value = next(claim.value for claim in found.claims if claim.quantity == "processes_per_node")
    assert value == Unresolved("the argument `n` of go")


def test_a_function_that_only_prints_starts_nothing() -> None:
    code = 'import os\ndef show(cmd):\n    print(cmd)\nshow("torchrun train.py")\nos.system("ls torchrun")\n'
    assert reading(code).launches == ()
