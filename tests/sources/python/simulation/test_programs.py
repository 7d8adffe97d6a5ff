"""Programs on paper: where they stop, and which rank waits alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomllib

from preflight.model.findings import Status
from preflight.plugins import registry
from preflight.sources.base import SourceFile
from preflight.sources.discovery.assemble import assemble
from preflight.sources.formats.tree import DirectoryTree
from preflight.sources.python.simulation import run_state
from preflight.sources.python.simulation.launch_runs import run_script
from preflight.sources.python.simulation.run_claims import alone
from preflight.sources.python.simulation.run_state import Run
from preflight.sources.python.simulation.world import World
from tests.rules.rule_builders import judged
from tests.rules.test_cases import RULES

_PROGRAMS = tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8"))

_START = """
import argparse
import os
import torch.distributed as dist
dist.init_process_group("gloo")
"""


def _run(folder: Path, files: dict[str, str], *, rank: int = 0, arguments: str = "") -> Run:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    tree = DirectoryTree(folder)
    script = tree.read("train.py")
    assert isinstance(script, SourceFile)

    def read(path: str) -> str | None:
        found = tree.read(path)
        return found.text if isinstance(found, SourceFile) else None

    variables = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    return run_script(script, World(rank, rank, 2, 2, tuple(arguments.split()), variables, read), tree)


@pytest.mark.parametrize("name", _PROGRAMS)
def test_program_that_runs_to_its_end(name: str, tmp_path: Path) -> None:
    files = {key: text for key, text in _PROGRAMS[name].items() if key != "arguments"}

    failure = _run(tmp_path, files, arguments=_PROGRAMS[name]["arguments"]).failure

    assert failure is None, failure.shown


_FAILING = {
    "assert in a method of a class in a module": (
        {
            "train.py": "from plan import Plan\nPlan(world=2).check()\n",
            "plan.py": "class Plan:\n    def __init__(self, world):\n        self.world = world\n\n"
            "    def check(self):\n        assert self.world % 4 == 0\n",
        },
        "",
        "`2 % 4 == 0` is false",
    ),
    "number of ranks": (
        {"train.py": _START + "if dist.get_world_size() != 8:\n    raise ValueError('8 ranks')\n"},
        "",
        "`2 != 8` is true",
    ),
    "choice of the parser": (
        {
            "train.py": "import argparse\nparser = argparse.ArgumentParser()\n"
            "parser.add_argument('--tp', type=int, choices=[1, 2])\nargs = parser.parse_args()\n"
        },
        "--tp 3",
        "argument --tp: invalid choice: 3 (choose from 1, 2)",
    ),
    "value of a file": (
        {
            "train.py": "import yaml\nconf = yaml.safe_load(open('conf.yaml'))\n"
            "size = conf['model']['heads']\nassert size % 4 == 0, size\n",
            "conf.yaml": "model: {heads: 6}\n",
        },
        "",
        "`6 % 4 == 0` is false",
    ),
    "key that a file does not have": (
        {
            "train.py": "import json\nconf = json.load(open('conf.json'))\nprint(conf['lr'])\n",
            "conf.json": '{"rate": 1}',
        },
        "",
        "conf.json has no `lr`",
    ),
    "property and inheritance": (
        {
            "train.py": "class Base:\n    @property\n    def size(self):\n        return self.part * 3\n\n"
            "class Own(Base):\n    part = 5\n\nassert Own().size == 16\n"
        },
        "",
        "`15 == 16` is false",
    ),
    "decorator of the program itself": (
        {
            "train.py": "def twice(function):\n    def inner(*values):\n        return function(*values) * 2\n"
            "    return inner\n\n@twice\ndef size(n):\n    return n\n\nif size(3) != 7:\n    raise SystemExit(2)\n"
        },
        "",
        "`6 != 7` is true",
    ),
}


@pytest.mark.parametrize("name", _FAILING)
def test_program_that_stops(name: str, tmp_path: Path) -> None:
    files, arguments, shown = _FAILING[name]

    failure = _run(tmp_path, files, arguments=arguments).failure

    assert failure is not None
    assert failure.shown == shown


_ALONE = {
    "method behind a property": (
        "class Context:\n    @property\n    def chief(self):\n        return dist.get_rank() == 0\n\n"
        "class Saver:\n    def save(self):\n        dist.barrier()\n\n"
        "saver = Saver()\nif Context().chief:\n    saver.save()\n",
        "dist.barrier()",
    ),
    "early return": (
        "def main():\n    if dist.get_rank():\n        return\n    dist.barrier()\n\nmain()\n",
        "dist.barrier()",
    ),
    "every few steps": (
        "def evaluate():\n    dist.all_reduce(loss)\n\n"
        "for step in range(1000):\n    if step % 100 == 0 and dist.get_rank() == 0:\n        evaluate()\n",
        "dist.all_reduce(loss)",
    ),
    "other rank": ("if int(os.environ['LOCAL_RANK']) > 0:\n    dist.broadcast(x, 0)\n", "dist.broadcast(x, 0)"),
}
_TOGETHER = {
    "the same in both branches": "if dist.get_rank() == 0:\n    dist.barrier()\nelse:\n    dist.barrier()\n",
    "group of its own": "pair = dist.new_group([0])\nif dist.get_rank() == 0:\n    dist.barrier(group=pair)\n",
    "unknown condition": "import unseen\nif unseen.ready():\n    if dist.get_rank() == 0:\n        dist.barrier()\n",
    "counterpart in what is not seen": (
        "import unseen\nif dist.get_rank() == 0:\n    dist.barrier()\nelse:\n    unseen.wait()\n"
    ),
}


@pytest.mark.parametrize("name", _ALONE)
def test_rank_that_waits_alone(name: str, tmp_path: Path) -> None:
    text, waiting = _ALONE[name]

    event = alone(*(_run(tmp_path, {"train.py": _START + text}, rank=rank) for rank in (0, 1)))

    assert event is not None
    lines = (_START + text).splitlines()
    assert waiting in lines[event.node.lineno - 1]


@pytest.mark.parametrize("name", _TOGETHER)
def test_ranks_that_meet(name: str, tmp_path: Path) -> None:
    text = _START + _TOGETHER[name]

    assert alone(*(_run(tmp_path, {"train.py": text}, rank=rank) for rank in (0, 1))) is None


@pytest.mark.parametrize(
    ("text", "strict"),
    [
        ("import argparse\nargparse.ArgumentParser().parse_args()", True),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--a')\np.parse_args()", True),
        ("import argparse\np = argparse.ArgumentParser()\np.parse_known_args()", False),
        ("import argparse\np = argparse.ArgumentParser(parents=[common])\np.parse_args()", False),
        ("import argparse\np = argparse.ArgumentParser()\nadd_more(p)\np.parse_args()", False),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument(*names)\np.parse_args()", False),
        ("import argparse\np = argparse.ArgumentParser()\np.parse_args(['--a'])", False),
        ("p = other_parser()\np.parse_args()", False),
    ],
)
def test_a_parser_is_strict_only_if_all_its_options_are_known(text: str, strict: bool, tmp_path: Path) -> None:
    assert any(each.options for each in _run(tmp_path, {"train.py": text}).parsers) is strict


def test_collective_of_one_rank_is_undecided_where_the_program_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.sh").write_text("torchrun --nproc-per-node=2 train.py\n", encoding="utf-8")
    branch = "if dist.get_rank() == 0:\n    finish()\n"
    rest = "for step in (1, 2, 3, 4):\n    print(step)\n" * 40
    finish = "def finish():\n    dist.barrier()\n"
    (tmp_path / "train.py").write_text(f"{_START}{finish}{branch}{rest}", encoding="utf-8")
    monkeypatch.setattr(run_state, "MAX_STEPS", 200)

    jobs = assemble(tmp_path, [tmp_path], sources=registry.sources())
    outcomes = [outcome for job in jobs for outcome in judged(RULES["TRN002"], [job])]

    assert [outcome.status for outcome in outcomes] == [Status.UNKNOWN]
    assert "cannot be followed to its end" in outcomes[0].reason


def test_comments_of_a_module_that_a_program_comes_to_count(tmp_path: Path) -> None:
    files = {
        "run.sh": "torchrun --nproc-per-node=2 train.py\n",
        "train.py": "from one import go\ngo()\n",
        "one.py": "from two import go\n",
        "two.py": "from three import go\n",
        "three.py": "import torch.distributed as dist\n\n\ndef go():\n"
        "    dist.init_process_group('gloo')  # preflight: ignore[CFG002] known\n",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")

    (job,) = assemble(tmp_path, [tmp_path / "run.sh"], sources=registry.sources())

    assert [(each.path, each.reason) for each in job.suppressions] == [("three.py", "known")]
