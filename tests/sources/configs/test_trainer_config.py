"""Files of training arguments: Hugging Face's, LLaMA-Factory's, axolotl's, torchtune's."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, NoteKind, Scope, Unresolved
from preflight.model.job.value import QUANTITIES, is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.hugging_face import TrainerConfigSource
from preflight.sources.formats.tree import MemoryTree

LLAMA_FACTORY = """\
model_name_or_path: Qwen/Qwen2.5-7B
per_device_train_batch_size: 2
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
warmup_ratio: 0.1
bf16: true
fp16: false
ddp_timeout: 180000000
deepspeed: ds/z3.json
save_strategy: no
eval_steps: 500
"""
AXOLOTL = """\
base_model: NousResearch/Llama-3.2-1B
micro_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 2e-5
bf16: auto
fsdp_version: 2
fsdp_config:
  auto_wrap_policy: TRANSFORMER_BASED_WRAP
  transformer_layer_cls_to_wrap: LlamaDecoderLayer
"""
TORCHTUNE = """\
tokenizer:
  _component_: torchtune.models.llama3.llama3_tokenizer
batch_size: 2
gradient_accumulation_steps: 4
tensor_parallel_dim: 2
"""


def _file(text: str, path: str = "args.yaml") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _read(text: str, path: str = "args.yaml", **files: str) -> Reading:
    return TrainerConfigSource().read(_file(text, path), MemoryTree(dict(files)), scope=Scope(launch="run.sh:1"))


def _values(reading: Reading) -> dict[str, object]:
    found: dict[str, object] = {}
    for claim in reading.claims:
        if claim.quantity != "trainer_argument" and not claim.quantity.startswith("setting."):
            found[claim.quantity] = claim.value.value if isinstance(claim.value, Known) else None
    return found


def _only_claim(reading: Reading, quantity: str) -> Claim:
    (claim,) = [claim for claim in reading.claims if claim.quantity == quantity]
    return claim


def test_a_file_of_llama_factory() -> None:
    reading = _read(LLAMA_FACTORY, **{"ds/z3.json": "{}"})
    assert reading.notes == ()
    assert _values(reading) == {
        "model_name": "Qwen/Qwen2.5-7B",
        "micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 8,
        "learning_rate": 1e-4,
        "mixed_precision": "bf16",
        "process_group_timeout_s": 180000000,
        "save_strategy": "no",
        "eval_steps": 500.0,
        "training_framework": "transformers",
        "sharding_library": "deepspeed",
    }
    assert [(r.target, r.role, r.scope.launch) for r in reading.references] == [("ds/z3.json", "config", "run.sh:1")]
    for claim in reading.claims:
        assert is_known(claim.quantity)
        if isinstance(claim.value, Known) and claim.quantity in QUANTITIES:
            assert isinstance(claim.value.value, QUANTITIES[claim.quantity].kind), claim
    batch = _only_claim(reading, "micro_batch_size_per_gpu")
    assert (batch.span.line, batch.spelling, batch.source) == (2, "per_device_train_batch_size: 2", "trainer")


def test_a_file_of_axolotl() -> None:
    values = _values(_read(AXOLOTL))
    assert values["micro_batch_size_per_gpu"] == 2
    assert values["model_name"] == "NousResearch/Llama-3.2-1B"
    # YAML 1.1 reads 2e-5 as text.
    assert values["learning_rate"] == 2e-5
    assert "mixed_precision" not in values
    assert values["training_framework"] == "axolotl"
    assert (values["fsdp_version"], values["fsdp_layer_classes"]) == (2, ("LlamaDecoderLayer",))


def test_a_recipe_of_torchtune() -> None:
    values = _values(_read(TORCHTUNE))
    assert values == {
        "micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "tensor_parallel_size": 2,
        "training_framework": "torchtune",
    }


@pytest.mark.parametrize(
    ("text", "path", "expected"),
    [
        (LLAMA_FACTORY, "a.yaml", True),
        (AXOLOTL, "a.yml", True),
        (TORCHTUNE, "a.yaml", True),
        ('{"per_device_train_batch_size": 1,\n "output_dir": "out"}', "args.json", True),
        (LLAMA_FACTORY, "a.txt", False),
        # Keys of other tools' sections, and of DeepSpeed itself.
        ("apiVersion: v1\nkind: ConfigMap\ngradient_accumulation_steps: 1\noutput_dir: x\n", "a.yaml", False),
        (
            '{"train_micro_batch_size_per_gpu": 1,\n "gradient_accumulation_steps": 2,\n "learning_rate": 1}',
            "a.json",
            False,
        ),
        ("model:\n  per_device_train_batch_size: 1\n  learning_rate: 1\n", "a.yaml", False),
        ("gradient_accumulation_steps: 2\n", "a.yaml", False),
        ("", "a.yaml", False),
    ],
)
def test_files_are_recognised_by_their_keys(text: str, path: str, expected: bool) -> None:
    assert TrainerConfigSource().recognises(_file(text, path)) is expected


def test_placeholders_are_unresolved_and_faults_give_notes() -> None:
    reading = _read("per_device_train_batch_size: {{ bs }}\nmodel_name_or_path: ${MODEL}\nlearning_rate: high\n")
    for quantity in ("micro_batch_size_per_gpu", "model_name", "learning_rate"):
        assert isinstance(_only_claim(reading, quantity).value, Unresolved), quantity
    broken = _read("per_device_train_batch_size: 2\nlearning_rate: [\n")
    assert [note.kind for note in broken.notes] == [NoteKind.MALFORMED]
    assert _only_claim(broken, "micro_batch_size_per_gpu").value == Known(2)


@pytest.mark.parametrize(
    "text", ["", "- 1\n", "deepspeed: {a: b}\nfsdp_config: path.json\nper_device_train_batch_size: [1]\n"]
)
def test_invalid_files_do_not_raise(text: str) -> None:
    assert all(is_known(claim.quantity) for claim in _read(text).claims)


def test_a_file_of_fsdp_settings() -> None:
    text = '{"fsdp_transformer_layer_cls_to_wrap": ["Block"], "xla": true, "xla_fsdp_v2": true}'
    assert _values(_read(text, "fsdp_config.json")) == {"fsdp_layer_classes": ("Block",)}
