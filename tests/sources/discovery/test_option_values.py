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
parser.add_argument("--file", dest="sync", required=True)
parser.add_argument("--seconds", type=int, default=60)
parser.add_argument("--slow", action="store_true")
parser.add_argument("--world", type=lambda text: int(text) * 2)
args = parser.parse_args()
{before}
dist.init_process_group("gloo", init_method={method})
"""


def _init_method(folder: Path, line: str, method: str, before: str = "") -> Value:
    (folder / "run.sh").write_text(f"torchrun --nproc_per_node 2 train.py {line}\n", encoding="utf-8")
    (folder / "train.py").write_text(_PARSER.format(method=method, before=before), encoding="utf-8")
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
    ],
)
def test_an_option_has_the_value_of_the_line(tmp_path: Path, line: str, method: str, expected: object) -> None:
    assert _init_method(tmp_path, line, method) == Known(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("line", "method", "before"),
    [
        # The line may give it.
        ('"$@"', "args.url", ""),
        ("--url $URL", "args.url", ""),
        # argparse takes the beginning of an option.
        ("--ur tcp://a:1", "args.url", ""),
        # It is required, or is made into something else.
        ("", "args.sync", ""),
        ("--world 2", "args.world", ""),
        ("--seconds many", "args.seconds", ""),
        # The script changes it, or what holds it is not what the parser returned.
        ("", "args.url", 'args.url = "tcp://b:2"'),
        ("", "args.url", 'setattr(args, "url", "tcp://b:2")'),
        ("", "cfg.url", "cfg = load()"),
    ],
)
def test_what_the_line_does_not_tell_stays_open(tmp_path: Path, line: str, method: str, before: str) -> None:
    assert isinstance(_init_method(tmp_path, line, method, before), Unresolved)
