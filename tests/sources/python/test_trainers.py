"""Arguments of trainers in scripts: Hugging Face, TRL, Lightning; models that scripts load."""

from __future__ import annotations

import pytest

from preflight.model.job import Known, Relation, Unresolved
from preflight.sources.base import Reading, SourceFile
from preflight.sources.formats.tree import MemoryTree
from preflight.sources.python.python_source import PythonSource


def _read(text: str) -> Reading:
    file = MemoryTree({"train.py": text}).read("train.py")
    assert isinstance(file, SourceFile)
    return PythonSource().read(file, MemoryTree({"train.py": text}), role="script")


def _values(text: str, *quantities: str) -> dict[str, object]:
    claims = [claim for claim in _read(text).claims if not quantities or claim.quantity in quantities]
    return {claim.quantity: claim.value.value if isinstance(claim.value, Known) else None for claim in claims}


def test_training_arguments_give_the_same_claims_as_options() -> None:
    text = (
        "from transformers import Seq2SeqTrainingArguments\n"
        "args = Seq2SeqTrainingArguments(per_device_train_batch_size=2, learning_rate=1e-4, bf16=True, fp16=False,\n"
        "    max_grad_norm=0.5, save_strategy='epoch', load_best_model_at_end=True)\n"
    )
    found = _values(
        text, "micro_batch_size_per_gpu", "learning_rate", "mixed_precision", "gradient_clipping", "save_strategy"
    )
    assert found == {
        "micro_batch_size_per_gpu": 2,
        "learning_rate": 1e-4,
        "mixed_precision": "bf16",
        "gradient_clipping": 0.5,
        "save_strategy": "epoch",
    }


def test_configurations_of_trl() -> None:
    text = "from trl import SFTConfig\nargs = SFTConfig(output_dir='o', gradient_accumulation_steps=8, fp16=True)\n"
    assert _values(text, "gradient_accumulation_steps", "mixed_precision") == {
        "gradient_accumulation_steps": 8,
        "mixed_precision": "fp16",
    }


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("AutoModelForCausalLM.from_pretrained('gpt2')", {"model_name": "gpt2"}),
        ("XLMRobertaModel.from_pretrained(pretrained_model_name_or_path='BAAI/bge-m3')", {"model_name": "BAAI/bge-m3"}),
        ("AutoTokenizer.from_pretrained('gpt2')", {}),
        ("AutoModel.from_pretrained(args.model)", {}),
    ],
)
def test_models_that_are_loaded_by_name(call: str, expected: dict[str, object]) -> None:
    text = f"import torch.distributed as dist\nfrom transformers import *\n\ndist.init_process_group()\nm = {call}\n"
    assert _values(text, "model_name") == expected


def test_lightning_strategies_and_precisions() -> None:
    text = (
        "import lightning as L\nfrom lightning.fabric.strategies import DeepSpeedStrategy\n"
        "fabric = L.Fabric(devices=4, num_nodes=2, strategy=DeepSpeedStrategy(stage=3), precision='bf16-true')\n"
    )
    found = _values(text, "lightning_strategy", "lightning_precision", "nodes", "processes_per_node")
    assert found == {
        "lightning_strategy": "deepspeed",
        "lightning_precision": "bf16-true",
        "nodes": 2,
        "processes_per_node": 4,
    }
    sizes = [claim for claim in _read(text).claims if claim.quantity in ("nodes", "processes_per_node")]
    assert {claim.relation for claim in sizes} == {Relation.REQUIRES}


def test_values_left_to_the_library_or_a_variable_are_unknown() -> None:
    text = "import lightning as L\ndef f(s):\n    return L.Trainer(devices='auto', strategy=s, precision=16)\n"
    claims = {claim.quantity: claim.value for claim in _read(text).claims}
    assert isinstance(claims["lightning_strategy"], Unresolved)
    assert claims["lightning_precision"] == Known("16")
    assert "processes_per_node" not in claims


PARSER = "from transformers import HfArgumentParser, TrainingArguments\nparser = HfArgumentParser(TrainingArguments)\n"


@pytest.mark.parametrize(("more", "alone"), [("", True), ("parser.add_argument('--task')\n", False)])
def test_a_parser_with_options_of_its_own_takes_others(more: str, alone: bool) -> None:
    name = "setting.transformers.(parser)"
    assert _values(PARSER + more, name) == {name: alone}


def test_arguments_of_sequence_models_are_not_judged_as_those_of_others() -> None:
    text = (
        "from transformers import Seq2SeqTrainingArguments\n"
        "args = Seq2SeqTrainingArguments(predict_with_generate=True, bf16=True)\n"
    )
    found = _values(text)
    assert "setting.transformers.bf16" in found
    assert "setting.transformers.predict_with_generate" not in found
