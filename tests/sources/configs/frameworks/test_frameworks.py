"""Configurations of frameworks: claims, unresolved values, and files of other tools."""

from __future__ import annotations

import pytest

from preflight.model.job import Claim, Known, NoteKind, Plain, Relation, Unresolved, Value
from preflight.model.job.value import SETTING_PREFIX, is_known
from preflight.sources.base import Reading, SourceFile
from preflight.sources.configs.framework_files import (
    FRAMEWORKS,
    PYTHON_FRAMEWORKS,
    SOURCES,
    FrameworkSource,
    framework_of,
    source_of,
)
from preflight.sources.formats.tree import MemoryTree

NAMED = {source.name: source for source in SOURCES}
AUTOMODEL = NAMED["automodel"]
GRAPHSTORM = NAMED["graphstorm"]
HUGECTR = NAMED["hugectr"]
HYPERPOD = NAMED["hyperpod"]
LINGUA = NAMED["lingua"]
LITGPT = NAMED["litgpt"]
MEGATRON_BRIDGE = NAMED["megatron-bridge"]
MEGATRON_CASE = NAMED["megatron"]
MINDFORMERS = NAMED["mindformers"]
NANOTRON = NAMED["nanotron"]
PADDLE_CLAS = NAMED["paddleclas"]
PADDLE_DETECTION = NAMED["paddledetection"]
PADDLE_FLEET_X = NAMED["paddlefleetx"]
PADDLE_SEG = NAMED["paddleseg"]
PRIME_RL = NAMED["prime-rl"]
TORCHTITAN = NAMED["torchtitan"]
VEOMNI = NAMED["veomni"]
WENET = NAMED["wenet"]
TITAN = """[job]
dump_folder = "runs/one"

[training]
local_batch_size = 2
seq_len = 8192
mixed_precision_param = "bfloat16"

[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = -1
tensor_parallel_degree = 4

[checkpoint]
enable = true
folder = "checkpoint"
interval = 500
"""
NANO = """general: {project: small}
model:
  dtype: bfloat16
  model_config:
    hidden_act: silu
    hidden_size: 2048
    num_attention_heads: 16
    num_hidden_layers: 24
    num_key_value_heads: 8
parallelism:
  dp: 4
  pp: 1
  tp: 2
tokens:
  micro_batch_size: 4
  batch_accumulation_per_replica: 8
optimizer:
  zero_stage: 1
"""
BRIDGE = """model:
  tensor_model_parallel_size: 2
  seq_length: 4096
train:
  train_iters: 100
  global_batch_size: 32
  micro_batch_size: ???
checkpoint:
  save: s3://bucket/run
"""


def read(source: FrameworkSource, text: str, path: str, **beside: str) -> Reading:
    """The reading of one file."""
    tree = MemoryTree({path: text, **{name.replace("_dot_", "."): more for name, more in beside.items()}})
    file = tree.read(path)
    assert isinstance(file, SourceFile)
    return source.read(file, tree)


def known(reading: Reading) -> dict[str, Plain]:
    """The known values by quantity, without the framework's own settings."""
    stated = (claim for claim in reading.claims if not claim.quantity.startswith(SETTING_PREFIX))
    return {claim.quantity: claim.value.value for claim in stated if isinstance(claim.value, Known)}


def unresolved_quantities(reading: Reading) -> set[str]:
    """The quantities with an unresolved value."""
    return {claim.quantity for claim in reading.claims if isinstance(claim.value, Unresolved)}


def claim_of(reading: Reading, quantity: str) -> Claim:
    """The single claim about a quantity."""
    (found,) = (claim for claim in reading.claims if claim.quantity == quantity)
    return found


def test_settings_of_torchtitan_are_stated_for_toml() -> None:
    text = "[job]\ndump_folder = 'out'\n\n[training]\nseq_len = 2048\nsteps = 5\n\n[model]\nflavor = '8B'\n"
    claims = read(TORCHTITAN, text, "llama.toml").claims
    stated = {claim.quantity: claim.span.line for claim in claims if claim.quantity.startswith(SETTING_PREFIX)}
    assert stated[f"{SETTING_PREFIX}torchtitan.training.seq_len"] == 5


def test_torchtitan() -> None:
    reading = read(TORCHTITAN, TITAN, "llama.toml")
    assert known(reading) == {
        "micro_batch_size_per_gpu": 2,
        "sequence_length": 8192,
        "mixed_precision": "bf16",
        "replicate_degree": 2,
        "tensor_parallel_size": 4,
        "save_interval": 500,
        "checkpoint_path": "runs/one/checkpoint",
    }
    assert unresolved_quantities(reading) == {"shard_degree"}
    claim = claim_of(reading, "tensor_parallel_size")
    assert (claim.span.line, claim.span.column, claim.spelling) == (12, 26, "tensor_parallel_degree = 4")


def test_torchtitan_claims_no_checkpoints_if_disabled() -> None:
    reading = read(TORCHTITAN, TITAN.replace("enable = true", "enable = false"), "llama.toml")
    assert "checkpoint_path" not in known(reading)


def test_nanotron() -> None:
    assert known(read(NANOTRON, NANO, "tiny.yaml")) == {
        "data_parallel_size": 4,
        "tensor_parallel_size": 2,
        "pipeline_parallel_size": 1,
        "micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 8,
        "mixed_precision": "bf16",
        "num_layers": 24,
        "hidden_size": 2048,
        "attention_heads": 16,
        "query_groups": 8,
        "distributed_optimizer": True,
        "gated_feed_forward": True,
    }


def test_megatron_bridge() -> None:
    reading = read(MEGATRON_BRIDGE, BRIDGE, "over.yaml")
    assert known(reading) == {
        "tensor_parallel_size": 2,
        "sequence_length": 4096,
        "train_steps": 100,
        "train_batch_size": 32,
    }
    # Placeholders, and values that are not folders.
    assert unresolved_quantities(reading) == {"micro_batch_size_per_gpu", "checkpoint_path"}


def test_paddlefleetx_inherits_missing_keys_from_its_base() -> None:
    base = "Global:\n  micro_batch_size: 1\n  local_batch_size: 1\nModel:\n  num_layers: 24\nEngine:\n  max_steps: 9\n"
    text = "_base_: ./base.yaml\nGlobal:\n  micro_batch_size: 8\nDistributed:\n  mp_degree: 8\n  dp_degree:\n"
    reading = read(PADDLE_FLEET_X, text, "gpt.yaml", base_dot_yaml=base)
    assert known(reading) == {
        "micro_batch_size_per_gpu": 8,
        "tensor_parallel_size": 8,
        "num_layers": 24,
        "train_steps": 9,
    }
    assert claim_of(reading, "num_layers").span.path == "base.yaml"
    assert claim_of(reading, "micro_batch_size_per_gpu").span.path == "gpt.yaml"


def test_circular_bases_terminate() -> None:
    reading = read(PADDLE_DETECTION, "_BASE_: ['b.yml']\nworker_num: 2\n", "a.yml", b_dot_yml="_BASE_: ['a.yml']\n")
    assert known(reading) == {"dataloader_workers": 2}


@pytest.mark.parametrize(
    ("source", "path", "text", "expected"),
    [
        (
            AUTOMODEL,
            "auto.yaml",
            "step_scheduler:\n  global_batch_size: 64\n  local_batch_size: 4\ndistributed:\n  tp_size: 2\n",
            {"train_batch_size": 64, "micro_batch_size_per_gpu": 4, "tensor_parallel_size": 2},
        ),
        (
            VEOMNI,
            "veomni.yaml",
            "train:\n  accelerator:\n    ulysses_size: 2\n  micro_batch_size: 1\n  global_batch_size: 16\n",
            {"context_parallel_size": 2, "micro_batch_size_per_gpu": 1, "train_batch_size": 16},
        ),
        (
            LINGUA,
            "lingua.yaml",
            "steps: 10\noptim: {lr: 3e-4}\ndistributed: {fsdp_type: full_shard}\ndata:\n  batch_size: 4\n".replace(
                "distributed: {fsdp_type: full_shard}", "distributed:\n  fsdp_type: full_shard\n  dp_shard: 8"
            ),
            {"train_steps": 10, "learning_rate": 3e-4, "shard_degree": 8, "micro_batch_size_per_gpu": 4},
        ),
        (
            LITGPT,
            "lit.yaml",
            "out_dir: out\nnum_nodes: 2\ndevices: auto\ntrain:\n  lr_warmup_steps: 5\n  global_batch_size: 512\n",
            {"nodes": 2, "train_batch_size": 512, "checkpoint_path": "out"},
        ),
        (
            GRAPHSTORM,
            "graph.yaml",
            "gsf:\n  basic: {backend: gloo}\n  hyperparam:\n    batch_size: 1024\n",
            {"backend": "gloo", "micro_batch_size_per_gpu": 1024},
        ),
        (
            MINDFORMERS,
            "mind.yaml",
            "run_mode: train\nparallel_config:\n  data_parallel: 2\n  model_parallel: 4\n  pipeline_stage: 2\n",
            {"data_parallel_size": 2, "tensor_parallel_size": 4, "pipeline_parallel_size": 2},
        ),
        (
            PADDLE_CLAS,
            "clas.yaml",
            "Global: {output_dir: ./output}\nDataLoader:\n  Train:\n    sampler:\n      batch_size: 64\n",
            {"micro_batch_size_per_gpu": 64, "checkpoint_path": "./output"},
        ),
        (
            PADDLE_DETECTION,
            "det.yml",
            "worker_num: 4\nTrainReader:\n  batch_size: 2\n",
            {"micro_batch_size_per_gpu": 2, "dataloader_workers": 4},
        ),
        (
            HUGECTR,
            "dcn.json",
            '{"solver": {"batchsize": 16384, "gpu": [0, 1, 2, 3], "max_iter": 10}, "layers": []}',
            {"train_batch_size": 16384, "gpus_per_node": 4, "train_steps": 10},
        ),
    ],
    ids=lambda item: item.name if isinstance(item, FrameworkSource) else "",
)
def test_other_trainers(source: FrameworkSource, path: str, text: str, expected: dict[str, Plain]) -> None:
    file = SourceFile(path, text, "", len(text))
    assert source_of(file) is source
    assert known(read(source, text, path)) == expected


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
@pytest.mark.parametrize("text", ["", "[", "{{ all }}", "- 1\n- 2\n", "model: 3\ntrain: x\ntraining = 1\n"])
def test_invalid_files_do_not_raise(source: FrameworkSource, text: str) -> None:
    path = "file" + source.framework.suffixes[0]
    assert not known(read(source, text, path))


@pytest.mark.parametrize(
    "text",
    [
        "apiVersion: v1\nkind: Pod\nmetadata: {name: x}\n",
        "trainer:\n  total_epochs: 15\nactor: {}\ndata:\n  train_batch_size: 1024\n",
        "services:\n  web:\n    image: nginx\n",
        "name: test\non: push\njobs:\n  build:\n    runs-on: ubuntu\n",
        "model:\n  name: resnet\ntrain:\n  epochs: 3\n",
    ],
)
def test_other_files_are_not_recognised(text: str) -> None:
    assert source_of(SourceFile("a.yaml", text, "", len(text))) is None


def test_a_table_states_only_quantities_that_exist() -> None:
    frameworks = [*(source.framework for source in SOURCES), *PYTHON_FRAMEWORKS]
    assert not [key for framework in frameworks for key in framework.keys if not is_known(key.quantity)]


def test_nodes_are_required_and_not_set() -> None:
    reading = read(LITGPT, "out_dir: out\nnum_nodes: 2\ntrain:\n  lr_warmup_steps: 5\n", "lit.yaml")
    assert claim_of(reading, "nodes").relation is Relation.REQUIRES


@pytest.mark.parametrize("name", ["torchtitan.train", "torchtitan/train.py", "/opt/torchtitan/train.py"])
def test_the_framework_of_a_program_is_found(name: str) -> None:
    framework = framework_of(name)
    assert framework is not None and framework.name == "torchtitan"


def test_other_programs_have_no_framework() -> None:
    assert framework_of("train.py") is None


WENET_YAML = """encoder: conformer
encoder_conf:
    output_size: 256
    attention_heads: 4
    linear_units: 2048
    num_blocks: 12
dataset_conf:
    batch_conf:
        batch_type: static
        batch_size: 16
grad_clip: 5
accum_grad: 4
optim_conf:
    lr: 1.e-3
"""
PRIME_TOML = """max_steps = 100
seq_len = 2048

[deployment]
type = "multi_node"
num_train_nodes = 4
gpus_per_node = 8

[trainer.model]
cp = 2
ep = 8

[trainer.optim]
lr = 1e-6

[orchestrator]
batch_size = 256

[inference.vllm]
tensor_parallel_size = 8
"""
SEG_YAML = """_base_: base.yml

batch_size: 2
model:
  type: PPLiteSeg
"""
SEG_BASE = """batch_size: 4
iters: 80000
train_dataset:
  type: Dataset
  dataset_root: data/cityscapes
lr_scheduler:
  learning_rate: 0.01
"""


@pytest.mark.parametrize(
    ("source", "path", "text", "expected"),
    [
        (
            WENET,
            "conf/train.yaml",
            WENET_YAML,
            {
                "micro_batch_size_per_gpu": 16,
                "gradient_accumulation_steps": 4,
                "gradient_clipping": 5.0,
                "learning_rate": 0.001,
                "hidden_size": 256,
                "attention_heads": 4,
                "ffn_hidden_size": 2048,
                "num_layers": 12,
            },
        ),
        (
            PRIME_RL,
            "rl.toml",
            PRIME_TOML,
            {
                "nodes": 4,
                "gpus_per_node": 8,
                "context_parallel_size": 2,
                "expert_parallel_size": 8,
                "rollout_tensor_parallel_size": 8,
                "sequence_length": 2048,
                "train_steps": 100,
                "learning_rate": 1e-6,
            },
        ),
        (
            PADDLE_SEG,
            "seg.yml",
            SEG_YAML,
            {
                "micro_batch_size_per_gpu": 2,
                "train_steps": 80000,
                "learning_rate": 0.01,
                "data_path": "data/cityscapes",
            },
        ),
    ],
)
def test_speech_reinforcement_and_segmentation(
    source: FrameworkSource, path: str, text: str, expected: dict[str, Plain]
) -> None:
    file = SourceFile(path, text, "", len(text))
    assert source_of(file) is source
    claims = source.read(file, MemoryTree({path: text, "base.yml": SEG_BASE})).claims
    assert all(is_known(claim.quantity) for claim in claims)
    assert {claim.quantity: claim.value.value for claim in claims if isinstance(claim.value, Known)} == expected


HYPERPOD_RECIPE = """run:
  # of the job
  name: a
  model_type: llm_finetuning_aws
  results_dir: ${base_results_dir}/${.name}
trainer: {devices: 8, num_nodes: 2}
training_config:
  training_args: {train_batch_size: 128, micro_train_batch_size: 4, learning_rate: 4e-4}
"""
NOVA_RECIPE = """run:
  model_type: amazon.nova
  replicas: 4
  data_s3_path: ""
training_config:
  max_length: 16384
  global_batch_size: 64
  model: {optim: {lr: 1e-5}}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            HYPERPOD_RECIPE,
            {
                "nodes": 2,
                "processes_per_node": 8,
                "train_batch_size": 128,
                "micro_batch_size_per_gpu": 4,
                "learning_rate": 4e-4,
            },
        ),
        (NOVA_RECIPE, {"nodes": 4, "train_batch_size": 64, "sequence_length": 16384, "learning_rate": 1e-5}),
    ],
)
def test_recipes_of_hyperpod(text: str, expected: dict[str, Plain]) -> None:
    file = SourceFile("recipe.yaml", text, "", len(text))
    assert source_of(file) is HYPERPOD
    claims = HYPERPOD.read(file, MemoryTree({})).claims
    assert {claim.quantity: claim.value for claim in claims} == {name: Known(value) for name, value in expected.items()}


def test_a_test_of_megatron_has_options_and_variables() -> None:
    text = (
        "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1\n  HF_TOKEN: hf_abc\nMODEL_ARGS:\n"
        "  --tensor-model-parallel-size: 4\n  --micro-batch-size: 2\n  --lr: ${LR}\n  --bf16: true\n"
    )
    file = SourceFile("model_config.yaml", text, "", len(text))
    assert source_of(file) is MEGATRON_CASE
    found = {claim.quantity: claim.value for claim in MEGATRON_CASE.read(file, MemoryTree({})).claims}
    assert isinstance(found.pop("learning_rate"), Unresolved)
    assert found == {
        "tensor_parallel_size": Known(4),
        "micro_batch_size_per_gpu": Known(2),
        "env.CUDA_DEVICE_MAX_CONNECTIONS": Known("1"),
    }


COMPOSER = FrameworkSource(FRAMEWORKS["composer"])

GOOD = """max_seq_len: 2048
model:
  name: mpt_causal_lm
  d_model: 4096
  n_heads: 32
  n_layers: 32
  max_seq_len: ${max_seq_len}
global_train_batch_size: 1024
device_train_microbatch_size: auto
precision: amp_bf16
"""


def claimed_values(text: str) -> dict[str, Value]:
    """The values by quantity, without the framework's own settings."""
    tree = MemoryTree({"mpt.yaml": text})
    file = tree.read("mpt.yaml")
    assert isinstance(file, SourceFile)
    claims = COMPOSER.read(file, tree).claims
    return {claim.quantity: claim.value for claim in claims if not claim.quantity.startswith("setting.")}


def test_sizes_of_a_training() -> None:
    found = claimed_values(GOOD)
    sizes = {name: value for name, value in found.items() if not name.startswith("setting.")}
    assert {name: value for name, value in sizes.items() if isinstance(value, Known)} == {
        "train_batch_size": Known(1024),
        "mixed_precision": Known("bf16"),
        "hidden_size": Known(4096),
        "attention_heads": Known(32),
        "num_layers": Known(32),
    }
    assert isinstance(found["micro_batch_size_per_gpu"], Unresolved)
    assert isinstance(found["sequence_length"], Unresolved)


@pytest.mark.parametrize("text", ["", "global_train_batch_size: [", "precision: amp_strange\n", "- 1\n", "model: 3\n"])
def test_invalid_files_are_noted_and_do_not_raise(text: str) -> None:
    found = claimed_values(text)
    assert all(isinstance(value, Unresolved) for name, value in found.items() if not name.startswith("setting."))


def test_composer_files_are_recognised() -> None:
    def recognised(text: str, path: str = "a.yaml") -> bool:
        return COMPOSER.recognises(SourceFile(path, text, "", len(text)))

    assert recognised(GOOD)
    assert not recognised(GOOD, "a.txt")
    assert not recognised("model:\n  global_train_batch_size: 3\n")


NEMO = FrameworkSource(FRAMEWORKS["lightning"])
NEMO_GOOD = """trainer:
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


def nemo_read(text: str, path: str = "conf/gpt.yaml") -> Reading:
    """The reading of one file."""
    tree = MemoryTree({path: text})
    file = tree.read(path)
    assert isinstance(file, SourceFile)
    return NEMO.read(file, tree)


def claims_by_quantity(text: str) -> dict[str, Claim]:
    """The claims by quantity."""
    return {claim.quantity: claim for claim in nemo_read(text).claims}


def test_trainer_and_model() -> None:
    claims = claims_by_quantity(NEMO_GOOD)
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
def test_nemo_invalid_files_are_noted_and_do_not_raise(text: str) -> None:
    assert all(isinstance(claim.value, Unresolved) for claim in nemo_read(text).claims)


def test_trainer_files_are_recognised() -> None:
    def recognised(text: str, path: str = "a.yaml") -> bool:
        return NEMO.recognises(SourceFile(path, text, "", len(text)))

    assert recognised(NEMO_GOOD)
    assert not recognised(NEMO_GOOD, "a.json")
    assert not recognised("trainer: fast\ndevices: 3\n")
    assert not recognised("model:\n  num_layers: 3\n")


GPT_NEOX = FrameworkSource(FRAMEWORKS["gpt-neox"])
NEOX_GOOD = """# pipeline over two nodes
{
  "pipe-parallel-size": 2,
  "model_parallel_size": 4,
  "num_layers": 24, "hidden_size": 2048,
  "num_attention_heads": 16,
  "seq_length": 2048,
  "zero_optimization": {"stage": 1, "reduce_bucket_size": 1.0e+8},
  "train_micro_batch_size_per_gpu": 4,
  "fp16": {"fp16": true, "enabled": true, "loss_scale": 0},
  "checkpoint-activations": true,
  "activation": "swiglu",
}
"""


def neox_read(text: str, path: str = "configs/1B.yml") -> Reading:
    """The reading of one file."""
    tree = MemoryTree({path: text})
    file = tree.read(path)
    assert isinstance(file, SourceFile)
    return GPT_NEOX.read(file, tree)


def recognised(text: str, path: str = "configs/1B.yml") -> bool:
    """Whether the source recognises the file."""
    return GPT_NEOX.recognises(SourceFile(path, text, "", len(text)))


def neox_claims_by_quantity(reading: Reading) -> dict[str, Claim]:
    """The claims by quantity."""
    return {claim.quantity: claim for claim in reading.claims}


def test_keys_of_both_kinds_in_both_spellings() -> None:
    claims = neox_claims_by_quantity(neox_read(NEOX_GOOD))
    assert {name: claims[name].value for name in ("pipeline_parallel_size", "tensor_parallel_size", "num_layers")} == {
        "pipeline_parallel_size": Known(2),
        "tensor_parallel_size": Known(4),
        "num_layers": Known(24),
    }
    assert claims["zero_stage"].value == Known(1)
    assert claims["micro_batch_size_per_gpu"].value == Known(4)
    assert claims["fp16_enabled"].value == Known(True)
    assert claims["recompute"].value == Known("full")
    assert claims["gated_feed_forward"].value == Known(True)


def test_places_and_sources() -> None:
    claims = neox_claims_by_quantity(neox_read(NEOX_GOOD))
    stage, pipe = claims["zero_stage"], claims["pipeline_parallel_size"]
    assert (stage.span.line, stage.spelling, stage.source) == (8, '"stage": 1', "deepspeed")
    assert (pipe.span.line, pipe.span.column, pipe.source) == (3, 25, "gpt-neox")


def test_top_level_keys_are_not_checked_as_deepspeed_keys() -> None:
    keys = {claim.value for claim in neox_read(NEOX_GOOD).claims if claim.quantity == "deepspeed_key"}
    assert keys == {Known("zero_optimization.stage"), Known("zero_optimization.reduce_bucket_size")}


def test_no_pipeline_is_one_stage() -> None:
    assert neox_claims_by_quantity(neox_read('"pipe_parallel_size": 0\n'))["pipeline_parallel_size"].value == Known(1)


def test_placeholders_are_unresolved() -> None:
    claims = neox_claims_by_quantity(
        neox_read('"pipe_parallel_size": {{ pipe }}\n"train_micro_batch_size_per_gpu": 4\n')
    )
    assert isinstance(claims["pipeline_parallel_size"].value, Unresolved)
    assert claims["micro_batch_size_per_gpu"].value == Known(4)


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "zero_optimization: [", "{", "zero_optimization: {stage: {a: b}}"])
def test_unusual_files_give_notes_and_no_crash(text: str) -> None:
    reading = neox_read(text)
    assert all(note.kind in (NoteKind.MALFORMED, NoteKind.TEMPLATE) for note in reading.notes)


def test_gpt_neox_files_are_recognised() -> None:
    assert recognised(NEOX_GOOD)
    assert recognised('"zero_optimization": {"stage": 0}\n"fp16": {"enabled": true}\n')
    assert not recognised(NEOX_GOOD, "configs/1B.json")
    assert not recognised("deepspeed_config:\n      zero_optimization:\n        stage: 2\n")
    assert not recognised("model:\n  num_layers: 24\n")


def test_checkpoint_folders_are_claimed() -> None:
    paths = (
        '"save": "/ckpt/neox", "load": "/ckpt/neox", "vocab_file": "/data/vocab.json", "keep_last_n_checkpoints": 4,'
    )
    found = neox_claims_by_quantity(neox_read(NEOX_GOOD.replace('"num_layers": 24,', f'"num_layers": 24, {paths}')))
    assert found["checkpoint_path"].value == found["resume_path"].value == Known("/ckpt/neox")
    assert found["input_file"].value == Known("/data/vocab.json")
    assert found["checkpoints_kept"].value == Known(4)
