"""Files of training arguments: Hugging Face's, LLaMA-Factory's, axolotl's, torchtune's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from preflight.model.job import Claim, Known, NoteKind, Plain, Scope, Unresolved
from preflight.model.job.value import QUANTITIES, is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.hugging_face import ModelConfigSource, TrainerConfigSource, config_of
from preflight.sources.configs.training_settings import TrainingSettingsSource
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


# Settings of trainings of no known framework, by the names of their keys.


def _settings_file(text: str, path: str = "conf/config.yaml") -> SourceFile:
    return SourceFile(path, text, "", len(text))


def _settings_read(text: str, path: str = "conf/config.yaml", *, role: str = "", **files: str) -> Reading:
    named = {name.replace("__", "/") + ".yaml": content for name, content in files.items()}
    file = _settings_file(text, path)
    assert TrainingSettingsSource().recognises(file)
    scope = Scope(launch="run.sh:1") if role else Scope()
    reading = TrainingSettingsSource().read(file, MemoryTree({path: text, **named}), scope=scope, role=role)
    assert all(is_known(claim.quantity) for claim in reading.claims)
    return reading


def _settings_values(claims: tuple[Claim, ...]) -> dict[str, Plain]:
    return {claim.quantity: claim.value.value for claim in claims if isinstance(claim.value, Known)}


def test_sizes_at_any_depth() -> None:
    text = (
        "training:\n  distributed: {num_nodes: 2, num-gpus-per-node: 8}\n"
        "  data: {train_batch_size: 4, num_workers: 3}\n"
        "  optimizer:\n    lr: 1e-4\n  gradient_accumulation_steps: 2\n"
    )
    assert _settings_values(_settings_read(text).claims) == {
        "nodes": 2,
        "gpus_per_node": 8,
        "given_batch_size": 4,
        "dataloader_workers": 3,
        "learning_rate": 1e-4,
        "gradient_accumulation_steps": 2,
    }


def test_toml() -> None:
    text = "seq_len = 2048\nmax_steps = 10\n[parallel]\ntensor_parallel_size = 4\n"
    assert _settings_values(_settings_read(text, "a.toml").claims) == {
        "sequence_length": 2048,
        "train_steps": 10,
        "tensor_parallel_size": 4,
    }


def test_values_of_other_parts_do_not_count() -> None:
    text = "lr: 0.1\ntrain: {batch_size: 8}\nval: {batch_size: 1}\nactor_infer: {tensor_parallel_size: 4}\n"
    assert _settings_values(_settings_read(text).claims) == {"learning_rate": 0.1, "given_batch_size": 8}


def test_two_different_values_give_no_claim() -> None:
    text = "a: {lr: 0.1, batch_size: 8}\nb: {lr: 0.1, batch_size: 16}\n"
    assert _settings_values(_settings_read(text).claims) == {"learning_rate": 0.1}


def test_a_value_filled_in_later_is_not_a_second_value() -> None:
    text = "lr: 0.1\nbatch_size: 8\nloader:\n    batch_size: !ref <batch_size>\n"
    assert _settings_values(_settings_read(text).claims) == {"learning_rate": 0.1, "given_batch_size": 8}


def test_the_nodes_of_a_graph_are_not_those_of_a_job() -> None:
    assert _settings_values(_settings_read("num_nodes: 5500\nbatch_size: 2\nlr: 0.1\n").claims) == {
        "given_batch_size": 2,
        "learning_rate": 0.1,
    }


def test_counts_belong_to_a_file_that_is_read_by_itself() -> None:
    text = "hydra:\n  launcher: {nodes: 2, gpus_per_node: 8, tasks_per_node: 1}\nlr: 0.1\n"
    assert _settings_values(_settings_read(text).claims) == {
        "nodes": 2,
        "gpus_per_node": 8,
        "tasks_per_node": 1,
        "learning_rate": 0.1,
    }
    assert _settings_values(_settings_read(text, role="trainer").claims) == {"learning_rate": 0.1}


def test_a_hydra_configuration_is_composed() -> None:
    reading = _settings_read(
        "defaults:\n  - training: big\n  - _self_\nnumber: 4\ntraining: {batch_size: 16}\n",
        conf__training__big="batch_size: 8\nlr: 0.1\ngradient_accumulation_steps: ${number}\n",
    )
    assert _settings_values(reading.claims) == {
        "given_batch_size": 16,
        "learning_rate": 0.1,
        "gradient_accumulation_steps": 4,
    }
    assert {claim.quantity: claim.span.path for claim in reading.claims} == {
        "given_batch_size": "conf/config.yaml",
        "learning_rate": "conf/training/big.yaml",
        "gradient_accumulation_steps": "conf/training/big.yaml",
    }
    assert [r.target for r in reading.references] == ["conf/training/big.yaml"]


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: ConfigMap\ndata: {batch_size: 3, lr: 1}\n",
        "openapi: 3.0.0\npaths:\n  batch_size: 1\n  lr: 2\n",
        "jobs:\n  test:\n    batch_size: 1\n    optimizer: x\n",
        "services:\n  a:\n    batch_size: 1\n    optimizer: x\n",
        "name: web\nbatch_size: 10\nqueue: redis\n",
        "num_nodes: 3\nedges: 4\n",
    ],
)
def test_other_files_are_left_alone(text: str) -> None:
    assert not TrainingSettingsSource().recognises(_settings_file(text))


@pytest.mark.parametrize(
    "text", ["", "lr: [\nbatch_size: 8\n", "- lr: 1\n- batch_size: 2\n", "batch_size:\n  lr: {}\n"]
)
def test_damaged_files_are_read_without_a_crash(text: str) -> None:
    TrainingSettingsSource().read(_settings_file(text), MemoryTree({"conf/config.yaml": text}))


@pytest.mark.parametrize(
    "text",
    [
        "train_settings:\n  num_nodes: 64\n  gpus_per_node: 8\n",
        "run:\n  nodes: 2\n  ntasks_per_node: 4\nmodel:\n  tensor_model_parallel_size: 8\n",
        "defaults:\n  - base\n  - _self_\ncp_size: 1\n",
    ],
)
def test_sizes_alone_make_a_file_of_settings(text: str) -> None:
    assert TrainingSettingsSource().recognises(_settings_file(text))


def test_absolute_names_start_from_the_folder_that_has_them() -> None:
    text = "# @package _global_\ndefaults:\n  - /model: big\n  - _self_\ntrainer:\n  max_steps: 5\n"
    reading = _settings_read(text, "conf/experiment/one.yaml", conf__model__big="tp_size: 4\n")
    assert _settings_values(reading.claims) == {"tensor_parallel_size": 4, "train_steps": 5}
    assert [reference.target for reference in reading.references] == ["conf/model/big.yaml"]
    assert not reading.notes


def test_absolute_names_that_no_folder_has_leave_the_own_settings() -> None:
    reading = _settings_read("defaults:\n  - /model: big\ntrain: {max_steps: 5}\n", "conf/experiment/one.yaml")
    assert _settings_values(reading.claims) == {"train_steps": 5}


def test_gin() -> None:
    text = (
        "include 't5x/examples/small.gin'\nTRAIN_STEPS = 10000\nBATCH_SIZE = 128  # of all hosts\nLR = %gin.REQUIRED\n"
        "train/utils.DatasetConfig:\n  batch_size = %BATCH_SIZE\ninfer_eval/utils.DatasetConfig.batch_size = 32\n"
        "partitioning.PjitPartitioner:\n  num_partitions = 2\n"
    )
    reading = _settings_read(text, "pretrain.gin")
    assert _settings_values(reading.claims) == {
        "train_steps": 10000,
        "given_batch_size": 128,
        "tensor_parallel_size": 2,
    }
    assert [claim.span.line for claim in reading.claims] == [2, 3, 9]


def test_ini() -> None:
    text = "[train]\nbatch_size = 64 ; of one GPU\nlr: 0.1\n[cluster]\ngpus_per_node=8\nnum_nodes=2\n"
    text += "[eval]\nbatch_size=1\n"
    assert _settings_values(_settings_read(text, "run.cfg").claims) == {
        "given_batch_size": 64,
        "learning_rate": 0.1,
        "gpus_per_node": 8,
        "nodes": 2,
    }


def test_settings_of_detectron() -> None:
    text = "_BASE_: a.yaml\nSOLVER:\n  IMS_PER_BATCH: 16\n  BASE_LR: 0.02\n  MAX_ITER: 90000\n"
    assert _settings_values(_settings_read(text).claims) == {
        "given_batch_size": 16,
        "learning_rate": 0.02,
        "train_steps": 90000,
    }


def test_degrees_alone() -> None:
    assert _settings_values(_settings_read("model: a\ntensor-parallel-size: 8\n").claims) == {"tensor_parallel_size": 8}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("setup.cfg", "[metadata]\nname = x\n[flake8]\nmax-line-length = 120\n"),
        ("nginx.conf", "worker_processes 4;\nhttp {\n  server { listen 80; }\n}\n"),
        ("model.gin", "Model.hidden = 4\nModel.dropout = 0.1\n"),
    ],
)
def test_other_assignments(path: str, text: str) -> None:
    assert not TrainingSettingsSource().recognises(_settings_file(text, path))


LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}
QWEN = {
    "model_type": "qwen2",
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "tie_word_embeddings": True,
}
QWEN_3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "moe_intermediate_size": 768,
    "num_attention_heads": 32,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "mlp_only_layers": [],
}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "vocab_size": 32000, "num_local_experts": 8}
DEEPSEEK = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "moe_intermediate_size": 2048,
    "num_attention_heads": 128,
    "num_hidden_layers": 61,
    "vocab_size": 129280,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "first_k_dense_replace": 3,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}
GPT_2 = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}


def claimed_values(config: Any, path: str = "m/config.json") -> dict[str, Plain]:
    """The known values by quantity."""
    text = config if isinstance(config, str) else json.dumps(config, indent=1)
    tree = MemoryTree({path: text})
    file = tree.read(path)
    assert isinstance(file, SourceFile)
    claims = ModelConfigSource().read(file, tree).claims
    return {claim.quantity: claim.value.value for claim in claims if isinstance(claim.value, Known)}


def recognised(config: Any, path: str = "m/config.json") -> bool:
    """Whether the source recognises the file."""
    text = json.dumps(config)
    return ModelConfigSource().recognises(SourceFile(path, text, "", len(text)))


def test_the_shape_of_a_model() -> None:
    assert recognised(LLAMA)
    assert claimed_values(LLAMA) == {
        "num_layers": 32,
        "hidden_size": 4096,
        "ffn_hidden_size": 14336,
        "attention_heads": 32,
        "query_groups": 8,
        "vocabulary_size": 128256,
        "gated_feed_forward": True,
        "model_parameters": 8_030_261_248,
    }


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # The totals in the index files of the published checkpoints.
        (LLAMA, 8_030_261_248),
        (QWEN, 494_032_768),
        (QWEN_3_MOE, 30_532_122_624),
        (MIXTRAL, 46_702_792_704),
        (DEEPSEEK, 671_026_419_200),
        (GPT_2, 124_439_808),
    ],
    ids=["llama", "qwen2", "qwen3_moe", "mixtral", "deepseek_v3", "gpt2"],
)
def test_parameters_are_those_of_the_published_model(config: Any, parameters: int) -> None:
    assert claimed_values(config)["model_parameters"] == parameters


def test_an_unknown_kind_has_a_shape_but_no_parameter_count() -> None:
    found = claimed_values({**LLAMA, "model_type": "somebodys_own"})
    assert found["num_layers"] == 32 and "model_parameters" not in found


@pytest.mark.parametrize("key", ["vocab_size", "intermediate_size", "hidden_size"])
@pytest.mark.parametrize("value", [None, -1, "x", 10**30])
def test_an_invalid_size_gives_no_parameter_count(key: str, value: Any) -> None:
    assert "model_parameters" not in claimed_values({**LLAMA, key: value})


def test_multimodal_models_have_the_language_model_in_a_section() -> None:
    assert claimed_values({"model_type": "qwen2_vl", "text_config": QWEN})["model_parameters"] == 494_032_768


@pytest.mark.parametrize("text", ["", "[", "[]", '{"model_type": "llama"', "{{ all }}"])
def test_model_invalid_files_do_not_raise(text: str) -> None:
    assert "model_parameters" not in claimed_values(text)


def test_other_json_is_not_a_model() -> None:
    assert not recognised({"model_type": "llama"})
    assert not recognised({**LLAMA, "per_device_train_batch_size": 4})
    assert not recognised(LLAMA, "config.yaml")
    assert recognised({"dim": 4096, "n_layers": 32, "n_heads": 32, "norm_eps": 1e-5, "vocab_size": -1})


def test_the_configuration_in_a_folder_that_is_named_as_a_model() -> None:
    tree = MemoryTree({"m/config.json": json.dumps(LLAMA), "other/config.json": "{}"})
    assert config_of("m", tree, "m") == "m/config.json"
    assert config_of("other", tree, "other") is None
    assert config_of("hf://m", tree, "m") is None
    assert config_of("gone", tree, None) is None
