"""The values that a launch line gives for the options of its program."""

from __future__ import annotations

from pathlib import Path

import pytest

from preflight.model.job import Known, Unresolved, Value
from preflight.plugins import registry
from preflight.sources.discovery.assemble import assemble

_PARSER = """\
import argparse
import torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("-u", "--url", default="env://")
parser.add_argument("--file", dest="sync")
parser.add_argument("--seconds", type=int, default=60)
parser.add_argument("--slow", action="store_true")
parser.add_argument("--world", type=lambda text: int(text) * 2)
args = parser.parse_args()
{before}
dist.init_process_group("gloo", init_method={method})
"""


def _init_method(folder: Path, line: str, method: str, before: str = "", **others: str) -> Value:
    return _of_program(folder, line, _PARSER.format(method=method, before=before), **others)


def _of_program(folder: Path, line: str, program: str, **others: str) -> Value:
    (folder / "run.sh").write_text(f"torchrun --nproc_per_node 2 train.py {line}\n", encoding="utf-8")
    for name, text in {"train": program, **others}.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    (job,) = assemble(folder, [folder], sources=registry.sources())
    (claim,) = [claim for claim in job.claims if claim.quantity == "setting.torch_group.init_method"]
    return claim.value


@pytest.mark.parametrize(
    ("line", "method", "expected"),
    [
        ("--url tcp://a:1", "args.url", "tcp://a:1"),
        ("--url=tcp://a:1 --url tcp://b:2", "args.url", "tcp://b:2"),
        ("-u tcp://a:1", "args.url", "tcp://a:1"),
        ("", "args.url", "env://"),
        ("--file /tmp/x", 'f"file://{args.sync}"', "file:///tmp/x"),
        ("--file /tmp/x --seconds 30", 'f"file://{args.sync}.{args.seconds}"', "file:///tmp/x.30"),
        ("--seconds 30", "args.seconds", 30),
        ("--seconds 30", "str(args.seconds)", "30"),
        ("", "args.slow", False),
        ("--slow", "args.slow", True),
        # argparse takes the beginning of an option, and a value behind a short one.
        ("--ur tcp://a:1", "args.url", "tcp://a:1"),
        ("-utcp://a:1", "args.url", "tcp://a:1"),
        ("", "args.sync", None),
        ("--world 2", "args.world", 4),
        ("--seconds 30", "args.seconds * 2", 60),
        ("--slow", "not args.slow", False),
        ("--url tcp://a:1", 'args.url if args.slow else "env://"', "env://"),
        ("--url tcp://a:1", "(args.url, args.seconds)", ("tcp://a:1", 60)),
    ],
)
def test_an_option_has_the_value_of_the_line(tmp_path: Path, line: str, method: str, expected: object) -> None:
    assert _init_method(tmp_path, line, method) == Known(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ('args.url = "tcp://b:2"', "tcp://b:2"),
        ('setattr(args, "url", "tcp://b:2")', "tcp://b:2"),
        # It comes too late.
        ("parser.set_defaults(url=load())", "env://"),
        ("sys.argv.append('--url=tcp://b:2')", "env://"),
    ],
)
def test_what_the_program_makes_of_an_option_counts(tmp_path: Path, before: str, expected: str) -> None:
    assert _init_method(tmp_path, "", "args.url", f"import sys\n{before}") == Known(expected)


@pytest.mark.parametrize(
    ("line", "method", "before"),
    [
        # The line may give it.
        ('"$@"', "args.url", ""),
        ("--url $URL", "args.url", ""),
        ("--seconds many", "args.seconds", ""),
        # The script changes it, or what holds it is not what the parser returned.
        ("", "cfg.url", "cfg = load()"),
        ("", "args.url", "given = vars(args)\ngiven.update(load())"),
        ("", "args.url", "args = argparse.Namespace(**{**vars(args), **load()})"),
        ("", "args.url", "args.seconds, args.url = load()"),
        ("", "args.url", "args.url: str = load()"),
        ("", "args.url", 'args.__setattr__("url", load())'),
        ("", "args.url", "complete(vars(args))"),
    ],
)
def test_what_the_line_does_not_tell_stays_open(tmp_path: Path, line: str, method: str, before: str) -> None:
    assert isinstance(_init_method(tmp_path, line, method, before), Unresolved)


_FUNCTIONS = """\
import argparse
import torch.distributed as dist


def parse():
    parser = argparse.ArgumentParser(description="train")
    group = parser.add_argument_group("ranks")
    group.add_argument("--url", default="env://")
    {declared}
    return parser.{parse}


def setup(options, rank):
    dist.init_process_group("gloo", init_method=options.url)


def main():
    {parsed}
    setup({given}, 0)


if __name__ == "__main__":
    main()
"""
_PLAIN = {"declared": "", "parse": "parse_args()", "parsed": "args = parse()", "given": "args"}


def test_options_are_followed_through_functions(tmp_path: Path) -> None:
    assert _of_program(tmp_path, "--url tcp://a:1", _FUNCTIONS.format(**_PLAIN)) == Known("tcp://a:1")


def test_the_first_of_the_known_options_is_followed(tmp_path: Path) -> None:
    program = _PARSER.replace("args = parser.parse_args()", "args, rest = parser.parse_known_args()")
    assert _of_program(tmp_path, "", program.format(method="args.url", before="")) == Known("env://")


@pytest.mark.parametrize(
    "other",
    [
        {"parse": "parse_args(\n        EXTRA\n    )"},
        {"parsed": "args = SimpleNamespace(**load())"},
        {"parsed": "args = parse() if ready() else load()"},
        {"given": "load()"},
        {"declared": "parser.add_argument(*NAMES, **FORM)"},
        {"declared": "parser = configargparse.ArgumentParser()"},
        {"declared": "sub = parser.add_subparsers()"},
    ],
)
def test_other_ways_to_parse_stay_open(tmp_path: Path, other: dict[str, str]) -> None:
    found = _of_program(tmp_path, "--url tcp://a:1", _FUNCTIONS.format(**{**_PLAIN, **other}))
    assert isinstance(found, Unresolved)


@pytest.mark.parametrize(
    ("called", "module"),
    [
        ("tools.setup(args)", "def setup(args):\n    for name in read():\n        setattr(args, name, 1)\n"),
        # What is not there to be read may change them.
        ("library.setup(args)", ""),
    ],
)
def test_what_another_module_may_change_stays_open(tmp_path: Path, called: str, module: str) -> None:
    before = f"import library\nimport tools\n{called}"
    assert isinstance(_init_method(tmp_path, "", "args.url", before, tools=module), Unresolved)


def test_what_a_module_makes_of_them_counts(tmp_path: Path) -> None:
    module = "def setup(args):\n    args.url = 'tcp://b:2'\n"
    found = _init_method(tmp_path, "", "args.url", "import tools\ntools.setup(args)", tools=module)
    assert found == Known("tcp://b:2")


def test_a_module_that_only_reads_them_changes_nothing(tmp_path: Path) -> None:
    module = "def show(args):\n    print(args.url)\n"
    assert _init_method(tmp_path, "", "args.url", "import tools\ntools.show(args)", tools=module) == Known("env://")


_SETUP = """\
import torch.distributed as dist


def setup({name}, rank):
    dist.init_process_group('gloo', init_method={method})
"""


@pytest.mark.parametrize(
    ("line", "method", "expected"),
    [
        ("--url tcp://a:1", "options.url", "tcp://a:1"),
        ("", "options.url", "env://"),
        ("--seconds 30", "f'tcp://a:{options.seconds}'", "tcp://a:30"),
    ],
)
def test_an_option_is_followed_into_a_module(tmp_path: Path, line: str, method: str, expected: str) -> None:
    program = _PARSER.partition("{before}")[0] + "import tools\n\ntools.setup(args, 0)\n"
    found = _of_program(tmp_path, line, program, tools=_SETUP.format(name="options", method=method))
    assert found == Known(expected)


@pytest.mark.parametrize("given", ["load()", "args.slow"])
def test_what_a_module_gets_instead_of_options_stays_open(tmp_path: Path, given: str) -> None:
    program = _PARSER.partition("{before}")[0] + f"import tools\n\ntools.setup({given}, 0)\n"
    found = _of_program(tmp_path, "", program, tools=_SETUP.format(name="options", method="options.url"))
    assert isinstance(found, Unresolved)


@pytest.mark.parametrize("line", ["--workers 3", ""])
def test_the_reasons_of_a_claim_have_the_values_of_the_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "run.sh").write_text(f"ray job submit -- python train.py {line}\n", encoding="utf-8")
    (tmp_path / "train.py").write_text(
        "import argparse\nfrom ray.train import ScalingConfig\n\nparser = argparse.ArgumentParser()\n"
        'parser.add_argument("--workers", type=int, default=2)\nargs = parser.parse_args()\n'
        "ScalingConfig(num_workers=args.workers)\n",
        encoding="utf-8",
    )
    (job,) = assemble(tmp_path, [tmp_path], sources=registry.sources())
    (claim,) = [claim for claim in job.claims if claim.quantity == "ray_scaling"]
    assert [reason.value for reason in claim.because] == [Known(3 if line else 2)]
