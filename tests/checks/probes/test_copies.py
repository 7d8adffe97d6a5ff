"""Hashing the job's files on a node, and the numbers in them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from preflight_checks.probes import copies as probe
from preflight_checks.probes.copies import copies, named_values


@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        (
            "ds.json",
            '{"train_batch_size": 8, "fp16": {"enabled": true}, "optimizer": {"params": {"lr": 1e-3}}, "api_key": 5}',
            {"train_batch_size": "8", "fp16.enabled": "true", "optimizer.params.lr": "0.001"},
        ),
        ("auto.json", '{"train_batch_size": "auto", "list": [1, 2, 2]}', {"train_batch_size": "auto", "list": "1, 2"}),
        (
            "c.yaml",
            "trainer:\n  devices: 8  # each\n  strategy: ddp\ndata:\n  - batch_size: 4\n    pin: True\nlast: 1\n",
            {"trainer.devices": "8", "data.batch_size": "4", "data.pin": "true", "last": "1"},
        ),
        (
            "t.py",
            "BATCH = 8\nloader = DataLoader(data, batch_size=4, shuffle=True)\n"
            "parser.add_argument('-b', '--batch-size', type=int, default=-1)\nself.heads: int = 16\ntoken = 'secret'\n",
            {"BATCH": "8", "batch_size": "4", "shuffle": "true", "--batch-size": "-1", "heads": "16"},
        ),
        (
            "run.sh",
            "export NNODES=2 NAME=train\nGPUS='4'; torchrun --nnodes=$NNODES --nproc_per_node 8 --lr=3e-4 t.py\n",
            {"NNODES": "2", "GPUS": "4", "--nproc_per_node": "8", "--lr": "3e-4"},
        ),
        ("hostfile", "node1 slots=4\nnode2  slots=8 # big\n", {"node1": "4", "node2": "8", "slots": "4, 8"}),
        ("broken.json", "{", {}),
        ("broken.py", "def (", {}),
        ("deep.json", "[" * 5000, {}),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value and "\n" not in value else "",
)
def test_numbers_by_name(name: str, text: str, values: dict[str, str]) -> None:
    assert named_values(name, text) == values


def test_a_hostile_file_costs_little() -> None:
    assert len(named_values("a.sh", " ".join(f"X{index}=1" for index in range(5000)))) == 400
    named_values("b.yaml", "a: 1 " * 200_000)
    named_values("c.sh", "--" * 500_000)


def test_copies_are_hashed_where_they_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("lr = 1\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "net.py").write_text("x = 1\n")
    for folder in (".git", "env", "wandb"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "skipped.py").write_text("")
    (tmp_path / "env" / "pyvenv.cfg").write_text("")
    (tmp_path / "data.json").mkdir()
    seen = copies({"files": [["train.py", ["nowhere/train.py", "train.py"]], ["gone", ["gone"]], ["d", ["data.json"]]]})
    train, gone, data = seen.copies
    assert train.sha256 == hashlib.sha256(b"lr = 1\n").hexdigest() and train.numbers == {"lr": "1"}
    assert train.path == str(tmp_path / "train.py")
    assert gone.problem == "missing" and data.problem == "it is not a regular file"
    assert sorted(seen.code) == ["model/net.py", "train.py"] and seen.code_files == 2 and seen.code_hash


def test_a_home_directory_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "train.py").write_text("")
    seen = copies({"files": [["train.py", ["train.py"]]]})
    assert seen.copies[0].sha256 and seen.code_files == 0


def test_large_trees_are_cut_off_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(probe, "MAX_CODE", 3)
    for index in range(5):
        (tmp_path / f"m{index}.py").write_text("")
    seen = copies({"files": [["m0.py", ["m0.py"]]]})
    assert "more code" in seen.cut and seen.code_hash == ""
