from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, Relation, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.framework_files import FRAMEWORKS, FrameworkSource
from preflight.sources.formats.tree import MemoryTree

NEMO = FrameworkSource(FRAMEWORKS["lightning"])

GOOD = """trainer:
  devices: [0, 1, 2, 3]
  num_nodes: 2
  precision: bf16-mixed
  max_steps: 1000
model:
  micro_batch_size: 4
  global_batch_size: 32
  tensor_model_parallel_size: 2
  num_layers: ${layers}
  hidden_size: ???
  ffn_hidden_size: null
  activation: fast-swiglu
"""


def read(text: str, path: str = "conf/gpt.yaml") -> Reading:
    """The reading of one file."""
    tree = MemoryTree({path: text})
    file = tree.read(path)
    assert isinstance(file, SourceFile)
    return NEMO.read(file, tree)


def claims_by_quantity(text: str) -> dict[str, Claim]:
    """The claims by quantity."""
    return {claim.quantity: claim for claim in read(text).claims}


def test_trainer_and_model() -> None:
    claims = claims_by_quantity(GOOD)
    assert {name: claim.value for name, claim in claims.items() if isinstance(claim.value, Known)} == {
        "nodes": Known(2),
        "processes_per_node": Known(4),
        "mixed_precision": Known("bf16"),
        "train_steps": Known(1000),
        "micro_batch_size_per_gpu": Known(4),
        "train_batch_size": Known(32),
        "tensor_parallel_size": Known(2),
        "gated_feed_forward": Known(True),
    }
    assert {name for name, claim in claims.items() if isinstance(claim.value, Unresolved)} == {
        "num_layers",
        "hidden_size",
    }
    nodes = claims["nodes"]
    assert (nodes.span.line, nodes.spelling, nodes.relation) == (3, "num_nodes: 2", Relation.REQUIRES)


@pytest.mark.parametrize("devices", ["auto", "-1", "'-1'", "${devices}", "???"])
def test_unknown_devices_are_unresolved(devices: str) -> None:
    assert isinstance(claims_by_quantity(f"trainer:\n  devices: {devices}\n")["processes_per_node"].value, Unresolved)


@pytest.mark.parametrize("text", ["", "trainer:\n", "trainer: [", "trainer:\n  devices:\n    a: {b: c}\nmodel: 3\n"])
def test_invalid_files_are_noted_and_do_not_raise(text: str) -> None:
    assert all(isinstance(claim.value, Unresolved) for claim in read(text).claims)


def test_trainer_files_are_recognised() -> None:
    def recognised(text: str, path: str = "a.yaml") -> bool:
        return NEMO.recognises(SourceFile(path, text, "", len(text)))

    assert recognised(GOOD)
    assert not recognised(GOOD, "a.json")
    assert not recognised("trainer: fast\ndevices: 3\n")
    assert not recognised("model:\n  num_layers: 3\n")
