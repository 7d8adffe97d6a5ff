"""None"""

from __future__ import annotations

import json

import pytest

from preflight.model.job import Known, OneOf, Relation, Strength, Unresolved
from preflight.sources.launchers.framework_arguments import ROLE
from preflight.sources.launchers.torch_launchers import _OPTIONS
from tests.sources.launchers.reading_lines import is_default, only, read, values, why


def test_both_spellings_and_both_forms_of_options_mean_the_same() -> None:
    one = read("torchrun --nnodes=2 --nproc-per-node=8 --node-rank=1 --master-addr=n1 --master-port=2950 t.py")
    two = read("torchrun --nnodes 2 --nproc_per_node 8 --node_rank 1 --master_addr n1 --master_port 2950 t.py")
    assert values(one) == values(two)
    assert values(one, source="torchrun") == {
        "nodes": 2,
        "processes_per_node": 8,
        "node_rank": 1,
        "rendezvous_backend": "static",
        "master_addr": "n1",
        "master_port": 2950,
        "chosen_value": "2950",
        "script": "t.py",
    }


def test_nodes_are_required_and_processes_set_at_the_options() -> None:
    reading = read("torchrun \\\n  --nnodes=4 \\\n  --nproc_per_node 8 t.py")
    nodes, processes = only(reading, "nodes"), only(reading, "processes_per_node")
    assert (nodes.relation, nodes.strength, nodes.spelling) == (
        Relation.REQUIRES,
        Strength.FLAG,
        "--nnodes=4",
    )
    assert (nodes.span.line, nodes.span.column, nodes.span.end_column) == (2, 3, 13)
    assert (processes.relation, processes.span.line, processes.spelling) == (
        Relation.SETS,
        3,
        "--nproc_per_node 8",
    )
    assert nodes.scope.launch == reading.launches[0].id == "run.sh:1"


def test_a_unique_prefix_of_an_option_counts_as_in_argparse() -> None:
    assert values(read("torchrun --nproc 4 --nno 2 --standal t.py"))["processes_per_node"] == 4
    # `--rdzv` could be four options; argparse rejects it, so nothing is claimed.
    assert "rendezvous_endpoint" not in values(read("torchrun --rdzv=a:1 t.py"))
    assert values(read("torchrun --rdzv_e=a:1 t.py"))["rendezvous_endpoint"] == "a:1"


def test_an_elastic_range_allows_several_counts() -> None:
    reading = read("torchrun --nnodes=2:4 --nproc_per_node=1 --rdzv_backend=c10d --rdzv_endpoint=n1 t.py")
    assert only(reading, "nodes").value == OneOf((2, 3, 4))
    assert only(reading, "min_nodes").value == Known(2)
    # c10d uses 29400 if the endpoint has no port.
    assert only(reading, "master_port").value == Known(29400)


@pytest.mark.parametrize("word", ["gpu", "auto", "cpu"])
def test_a_device_word_is_not_a_number(word: str) -> None:
    assert word in why(only(read(f"torchrun --nproc_per_node={word} t.py"), "processes_per_node"))


def test_defaults_of_several_nodes_are_stated_at_the_launchers_word() -> None:
    reading = read("export MASTER_ADDR=n1 MASTER_PORT=1234\ntorchrun --nnodes=2 --nproc_per_node=1 t.py")
    address, port = only(reading, "master_addr"), only(reading, "master_port")
    # torchrun does not read MASTER_ADDR.
    assert (address.value, port.value) == (Known("127.0.0.1"), Known(29500))
    assert is_default(address) and address.span.line == 2 and address.span.column == 1
    assert values(reading, environment=True)["env.MASTER_ADDR"] == "n1"


def test_one_node_without_a_port_has_no_fixed_endpoint() -> None:
    assert "master_port" not in values(read("torchrun --nproc_per_node=2 t.py"))
    assert "master_port" not in values(read("torchrun --standalone --nnodes=1 --nproc_per_node=2 t.py"))


def test_pet_variables_override_the_default_but_not_the_option() -> None:
    reading = read("export PET_NNODES=3 PET_MASTER_ADDR=n9\ntorchrun --master_addr=n1 t.py")
    assert only(reading, "nodes").value == Known(3)
    assert only(reading, "nodes").strength is Strength.ENVIRONMENT
    assert only(reading, "master_addr").value == Known("n1")


def test_a_port_after_an_unknown_host_is_known() -> None:
    reading = read("torchrun --nnodes=2 --rdzv_backend c10d --rdzv_endpoint=$HEAD:29511 t.py")
    assert only(reading, "master_port").value == Known(29511)
    assert "HEAD" in why(only(reading, "master_addr"))
    assert why(only(reading, "rendezvous_endpoint"))


def test_a_host_before_an_unknown_port_is_known() -> None:
    reading = read("torchrun --nnodes=2 --rdzv_endpoint=head01:$PORT t.py")
    assert only(reading, "master_addr").value == Known("head01")
    assert why(only(reading, "master_port"))


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [("n1:6000", "n1", 6000), ("[fd00::1]:6000", "fd00::1", 6000), ("10.0.0.1:6000", "10.0.0.1", 6000)],
)
def test_endpoints_are_split(endpoint: str, host: str, port: int) -> None:
    found = values(read(f"torchrun --nnodes=2 --rdzv_endpoint='{endpoint}' t.py"))
    assert (found["master_addr"], found["master_port"]) == (host, port)


@pytest.mark.parametrize("host", ["xxx.xxx.xxx.xxx", "'<ip of node 0>'", "MASTER_IP", "your-master", "master_addr"])
def test_a_placeholder_host_is_unknown(host: str) -> None:
    reading = read(f"torchrun --nnodes=2 --master_addr={host} --master_port=29500 t.py")
    assert "which must be replaced" in why(only(reading, "master_addr"))
    assert only(reading, "master_port").value == Known(29500)


@pytest.mark.parametrize("host", ["node0", "GPU1", "10.0.0.1", "master", "trainer_0", "x.example.org", "::1"])
def test_a_real_host_is_known(host: str) -> None:
    reading = read(f"torchrun --nnodes=2 --master_addr={host} --master_port=29500 t.py")
    assert only(reading, "master_addr").value == Known(host)


def test_no_default_where_unknown_words_may_hide_the_option() -> None:
    reading = read("torchrun $DISTRIBUTED_ARGS train.py --micro-batch-size 2")
    assert values(reading) == {"script": "train.py", "micro_batch_size_per_gpu": 2}
    assert reading.launches[0].program == "train.py"


def test_branches_give_alternatives() -> None:
    reading = read('if [ -z "$X" ]; then N=2; else N=4; fi\ntorchrun --nnodes=$N t.py')
    assert only(reading, "nodes").value == OneOf((2, 4))


def test_arguments_in_arrays_point_into_the_array() -> None:
    reading = read('ARGS=(\n  --nnodes 2\n  --nproc_per_node 4\n)\ntorchrun "${ARGS[@]}" t.py')
    assert only(reading, "nodes").span.line == 2
    assert only(reading, "processes_per_node").span.line == 3


def test_modules_and_programs_without_python() -> None:
    module = read("torchrun -m pkg.train --lr 1", pkg__train_dot_py="x = 1\n")
    assert module.launches[0].program == "pkg/train.py"
    assert module.launches[0].arguments == ("--lr", "1")
    bare = read("torchrun --no-python --nproc_per_node=2 python -u t.py --lr 1")
    assert (bare.launches[0].program, bare.launches[0].arguments) == ("t.py", ("--lr", "1"))


def test_the_old_module_is_distinguished_when_it_passes_local_rank() -> None:
    assert read("python -m torch.distributed.launch t.py").launches[0].launcher == "torch.distributed.launch"
    assert read("python -m torch.distributed.launch --use_env t.py").launches[0].launcher == "torchrun"
    assert read("python3.10 -u -m torch.distributed.run t.py").launches[0].launcher == "torchrun"


def test_one_torchrun_per_node_is_required_under_srun_only() -> None:
    required = only(read("srun torchrun --nproc_per_node=8 t.py"), "tasks_per_node")
    assert (required.value, required.relation) == (Known(1), Relation.REQUIRES)
    assert "tasks_per_node" not in values(read("torchrun --nproc_per_node=8 t.py"))
    assert "tasks_per_node" not in values(read("srun torchrun --nnodes=$SLURM_NTASKS --nproc_per_node=1 t.py"))


@pytest.mark.thorough
def test_the_table_holds_every_option_of_the_installed_torchrun() -> None:
    run = pytest.importorskip("torch.distributed.run")
    for action in run.get_args_parser()._actions:
        for spelling in action.option_strings:
            option = _OPTIONS.options[spelling]
            assert option.dest == action.dest
            assert bool(option.takes) is (action.nargs != 0), spelling


FLAGS = "--num_processes 16 --num_machines=2 --machine-rank 1 --main_process_ip n0 --main-process-port 29500"


def test_options_in_every_spelling() -> None:
    reading = read(f"accelerate launch {FLAGS} --mixed_precision bf16 train.py --gradient_accumulation_steps 2")
    assert values(reading, source="accelerate") == {
        "world_size": 16,
        "nodes": 2,
        "node_rank": 1,
        "master_addr": "n0",
        "master_port": 29500,
        "rendezvous_backend": "static",
        "mixed_precision": "bf16",
        "chosen_value": "bf16",
        "script": "train.py",
    }
    assert only(reading, "nodes").relation is Relation.REQUIRES
    assert only(reading, "rendezvous_backend").strength is Strength.DEFAULT
    assert reading.launches[0].launcher == "accelerate"
    # After the script it is the script's own option.
    assert only(reading, "gradient_accumulation_steps").source == "arguments"


@pytest.mark.parametrize(
    "words",
    ["accelerate launch", "accelerate-launch", "python -m accelerate.commands.launch", "uv run accelerate launch"],
)
def test_every_program_name(words: str) -> None:
    assert values(read(f"{words} {FLAGS} train.py"))["world_size"] == 16


@pytest.mark.parametrize(
    "words", ["accelerate config", "accelerate test", "accelerate env", "accelerate launch --help"]
)
def test_other_commands_launch_nothing(words: str) -> None:
    assert read(words).launches == ()


def test_references_have_the_role_of_the_file() -> None:
    reading = read(
        "accelerate launch --config_file acc.yaml --deepspeed_config_file ds.json --deepspeed_hostfile hosts"
        " -m pkg.train",
        acc_dot_yaml="distributed_type: MULTI_GPU\nnum_processes: 8\n",
    )
    roles = {reference.target: reference.role for reference in reading.references}
    assert roles == {"acc.yaml": "accelerate", "ds.json": "config", "hosts": "hostfile", "pkg/train.py": "script"}


def test_deepspeed_reaches_the_other_machines_unless_disabled() -> None:
    line = f"accelerate launch --use_deepspeed {FLAGS}"
    assert read(f"{line} train.py").launches[0].launcher == "deepspeed"
    assert read(f"{line} --deepspeed_multinode_launcher standard train.py").launches[0].launcher == "accelerate"
    file = "distributed_type: DEEPSPEED\nnum_machines: 2\nnum_processes: 16\n"
    reading = read("accelerate launch --config_file acc.yaml train.py", acc_dot_yaml=file)
    assert reading.launches[0].launcher == "deepspeed"
    reading = read("accelerate launch --config_file acc.yaml --num_machines 1 train.py", acc_dot_yaml=file)
    assert reading.launches[0].launcher == "accelerate"


def test_external_values_are_unresolved_and_hide_defaults() -> None:
    reading = read("accelerate launch --num_processes $N --main_process_port 0 $EXTRA train.py")
    assert isinstance(only(reading, "world_size").value, Unresolved)
    assert isinstance(only(reading, "master_port").value, Unresolved)
    assert "rendezvous_backend" not in values(reading)


def test_under_srun_there_is_one_agent_per_machine() -> None:
    reading = read(f"srun accelerate launch {FLAGS} train.py")
    claim = next(c for c in reading.claims if c.quantity == "tasks_per_node" and c.source == "accelerate")
    assert (claim.value, claim.relation) == (Known(1), Relation.REQUIRES)


def test_counts_store_and_files() -> None:
    reading = read(
        "deepspeed --hostfile hosts/hf --num_nodes 2 --num_gpus=4 --master_addr n1 train.py"
        " --deepspeed --deepspeed_config conf/ds.json"
    )
    assert only(reading, "processes_per_node").value == Known(4)
    assert only(reading, "master_addr").value == Known("n1")
    assert {(c.relation, c.strength, c.value) for c in reading.claims if c.quantity == "nodes"} == {
        (Relation.SETS, Strength.SCHEDULER, Known(2)),
        (Relation.AT_LEAST, Strength.FLAG, Known(2)),
    }
    port = only(reading, "master_port")
    assert is_default(port) and port.value == Known(29500)
    assert {(r.target, r.role, r.scope.launch) for r in reading.references} == {
        ("hosts/hf", "hostfile", "run.sh:1"),
        ("train.py", "script", "run.sh:1"),
        ("conf/ds.json", "config", "run.sh:1"),
    }


def test_included_slots_are_the_ranks() -> None:
    found = values(read('deepspeed --include "w0:0,1@w1:2,3" --master_port=$P t.py'))
    assert (found["hosts"], found["nodes"], found["processes_per_node"]) == (("w0", "w1"), 2, 2)
    assert found["master_port"] is None
    assert values(read("deepspeed -i w0:0,1@w1:2 t.py"))["processes_per_node"] is None
    assert "processes_per_node" not in values(read("deepspeed --include w0@w1 t.py"))


def test_minus_one_means_not_given() -> None:
    found = values(read("deepspeed --num_nodes=-1 --num_gpus -1 t.py"))
    assert "nodes" not in found and "processes_per_node" not in found


def test_exported_master_is_not_read() -> None:
    assert "master_addr" not in values(read("export MASTER_ADDR=n1\ndeepspeed t.py"))


def test_the_configuration_of_hugging_faces_trainer() -> None:
    reading = read(
        "deepspeed t.py --deepspeed zero3.json --per_device_train_batch_size 4 --gradient_accumulation_steps=2"
    )
    assert ("zero3.json", "config") in {(r.target, r.role) for r in reading.references}
    found = values(reading)
    assert (found["micro_batch_size_per_gpu"], found["gradient_accumulation_steps"]) == (4, 2)


def test_options_are_stated_in_the_order_of_the_line() -> None:
    options = ("num_gpus", "master_port", "hostfile", "num_nodes", "master_addr", "node_rank", "include")
    line = " ".join(f"--{name} {number}" for number, name in enumerate(options))
    found = [claim.quantity for claim in read(f"deepspeed {line} train.py\n").claims]
    prefix = "setting.deepspeed_launcher."
    stated = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
    assert [name for name in stated if name in options] == list(options)


# Configuration files of frameworks on a command line, and the settings that the line overrides.


TITAN = """[job]
dump_folder = "out"

[training]
seq_len = 8192

[parallelism]
tensor_parallel_degree = 4
"""


BRIDGE = "model:\n  seq_length: 4096\ntrain:\n  train_iters: 100\n  global_batch_size: 32\n"


LAUNCH = "#!/bin/bash\ntorchrun --nproc_per_node=8 "


@pytest.mark.parametrize("option", ["--job.config_file cfg.toml", "--job.config_file=cfg.toml", "cfg.toml"])
def test_the_file_is_recognised_by_its_content(option: str) -> None:
    reading = read(f"{LAUNCH}-m torchtitan.train {option}\n", cfg_dot_toml=TITAN)
    (reference,) = (found for found in reading.references if found.role == ROLE)
    assert (reference.target, reference.scope.launch) == ("cfg.toml", "run.sh:2")


@pytest.mark.parametrize(
    "written", ["--parallelism.tensor_parallel_degree=2", "--parallelism.tensor-parallel-degree 2"]
)
def test_an_option_overrides_a_key(written: str) -> None:
    reading = read(f"{LAUNCH}-m torchtitan.train --job.config_file cfg.toml {written}\n", cfg_dot_toml=TITAN)
    claim = only(reading, "tensor_parallel_size")
    assert (claim.source, claim.spelling, claim.alternatives) == ("torchtitan", written, (2,))


def test_a_program_identifies_its_framework() -> None:
    reading = read(f"{LAUNCH}-m torchtitan.train --training.seq_len 4096 --checkpoint.enable\n")
    assert values(reading, source="torchtitan") == {"sequence_length": 4096}


def test_settings_without_dashes() -> None:
    reading = read(f"{LAUNCH}pretrain.py --config-file o.yaml train.global_batch_size=$BATCH\n", o_dot_yaml=BRIDGE)
    assert values(reading, source="megatron-bridge") == {"train_batch_size": None}


def test_other_files_are_not_configurations() -> None:
    reading = read(f"{LAUNCH}train.py --config c.yaml --train.global_batch_size 4\n", c_dot_yaml="a: 1\n")
    assert ROLE not in {found.role for found in reading.references}
    assert not values(reading, source="megatron-bridge")


def test_a_registered_recipe() -> None:
    reading = read(
        f"{LAUNCH}-m torchtitan.train --module llama3 --config llama3_8b\n",
        torchtitan__models__llama3__config_registry_dot_py="def llama3_8b():\n    pass\n",
    )
    found = {reference.role: reference.target for reference in reading.references}
    assert found["recipe llama3_8b"] == "torchtitan/models/llama3/config_registry.py"


def test_a_model_in_the_tree_refers_to_its_configuration() -> None:
    model = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 8}
    reading = read(f"{LAUNCH}train.py --model_name_or_path models/m\n", models__m__config_dot_json=json.dumps(model))
    assert "models/m/config.json" in {reference.target for reference in reading.references}


def test_the_lock_of_the_tool_that_starts_it_and_nccls_file() -> None:
    script = "#!/bin/bash\nexport NCCL_CONF_FILE=conf/n.conf\nuv run torchrun --nproc_per_node=8 train.py\n"
    reading = read(script, uv_dot_lock="version = 1\n", conf__n_dot_conf="NCCL_DEBUG=INFO\n")
    assert {"uv.lock", "conf/n.conf"} <= {reference.target for reference in reading.references}


SETTINGS = "train:\n  micro_batch_size: 4\n  lr: 0.1\n  num_nodes: 9\n  gpus_per_node: 9\n"


@pytest.mark.parametrize("words", ["--config conf/a.yaml", "-c=conf/a.yaml", "conf/a.yaml"])
def test_settings_of_no_known_framework_belong_to_the_launch(words: str) -> None:
    found = read(f"torchrun --nproc_per_node=4 train.py {words}\n", conf__a_dot_yaml=SETTINGS)
    assert ("conf/a.yaml", "configuration") in {(item.target, item.role) for item in found.references}


@pytest.mark.parametrize("text", ["names: [a, b]\n", "apiVersion: v1\nbatch_size: 3\nlr: 1\n", "batch_size: 3\n"])
def test_other_files_on_the_line_are_not_settings(text: str) -> None:
    found = read("torchrun --nproc_per_node=4 train.py --data conf/a.yaml\n", conf__a_dot_yaml=text)
    assert "conf/a.yaml" not in {item.target for item in found.references if item.role == "configuration"}


def test_megatron_options_of_the_model() -> None:
    said = values(
        read(
            "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 24 --hidden-size=2048 --num-attention-heads 16"
            " --seq-length 4096 --num-query-groups 4 --swiglu --use-distributed-optimizer --recompute-activations"
            " --num-layers-per-virtual-pipeline-stage 2 --fp8-format hybrid --loss-scale 1024\n"
        ),
        source="arguments",
    )
    assert said == {
        "num_layers": 24,
        "hidden_size": 2048,
        "attention_heads": 16,
        "sequence_length": 4096,
        "query_groups": 4,
        "gated_feed_forward": True,
        "distributed_optimizer": True,
        "recompute": "selective",
        "layers_per_virtual_stage": 2,
        "fp8_format": "hybrid",
        "fp16_loss_scale": 1024.0,
    }


def test_a_named_model_and_an_external_one() -> None:
    reading = read("deepspeed train.py --model_name_or_path meta-llama/Llama-2-7b-hf --num-layers $L\n")
    assert only(reading, "model_name").value == Known("meta-llama/Llama-2-7b-hf")
    assert isinstance(only(reading, "num_layers").value, Unresolved)


# Paths among the arguments of training programs.


PATHS = ("checkpoint_path", "resume_path", "checkpoints_kept", "input_file")


def path_values(words: str) -> dict[str, object]:
    """The claims of a line about paths."""
    found = values(read(f"torchrun --nproc_per_node 8 train.py {words}\n"))
    return {quantity: value for quantity, value in found.items() if quantity in PATHS}


def test_megatrons_paths() -> None:
    words = "--save /ckpt/run --load /ckpt/run --vocab-file gpt2-vocab.json --merge-file /data/merges.txt"
    reading = read(f"torchrun --nproc_per_node 8 pretrain_gpt.py {words}\n")
    assert only(reading, "checkpoint_path").value == only(reading, "resume_path").value == Known("/ckpt/run")
    files = [claim.value for claim in reading.claims if claim.quantity == "input_file"]
    assert files == [Known("gpt2-vocab.json"), Known("/data/merges.txt")]


def test_the_trainers_folder_and_how_many_it_keeps() -> None:
    assert path_values("--output_dir out/run --save_total_limit 3 --resume_from_checkpoint out/run/checkpoint-500") == {
        "checkpoint_path": "out/run",
        "checkpoints_kept": 3,
        "resume_path": "out/run/checkpoint-500",
    }


@pytest.mark.parametrize(
    "words",
    [
        # Flags of other programs, and values that mean the newest checkpoint of the output folder.
        "--save --epochs 3",
        "--resume",
        "--resume_from_checkpoint True",
        "--resume_from_checkpoint auto",
        # A name on a hub is not a file of a node.
        "--tokenizer-model gpt2",
        "--tokenizer_path meta-llama/Llama-2-7b",
        # Half of the programs read from this path.
        "--checkpoint_dir /models/llama",
    ],
)
def test_values_that_are_not_paths_of_the_job(words: str) -> None:
    assert path_values(words) == {}


def test_an_external_path_is_unresolved() -> None:
    reading = read("torchrun --nproc_per_node 8 train.py --output_dir $OUT\n")
    assert isinstance(only(reading, "checkpoint_path").value, Unresolved)


ARGUMENTS = "model_name_or_path: gpt2\nper_device_train_batch_size: 2\nlearning_rate: 1.0e-5\n"


def test_llamafactory_is_configured_by_variables() -> None:
    reading = read(
        "FORCE_TORCHRUN=1 NNODES=2 NODE_RANK=1 NPROC_PER_NODE=8 MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"
        " llamafactory-cli train a.yaml learning_rate=1e-4",
        a_dot_yaml=ARGUMENTS,
    )
    assert values(reading, source="llamafactory-cli") == {
        "nodes": 2,
        "processes_per_node": 8,
        "node_rank": 1,
        "master_addr": "10.0.0.1",
        "master_port": 29500,
        "rendezvous_backend": "static",
    }
    assert only(reading, "nodes").relation is Relation.REQUIRES
    assert only(reading, "nodes").strength is Strength.ENVIRONMENT
    assert only(reading, "learning_rate").value.value == 1e-4  # type: ignore[union-attr]
    assert [(r.target, r.role) for r in reading.references] == [("a.yaml", "trainer")]
    assert reading.launches[0].launcher == "llamafactory-cli"


def test_llamafactory_used_to_read_the_node_rank_from_rank() -> None:
    reading = read("FORCE_TORCHRUN=1 NNODES=2 RANK=1 llamafactory-cli train a.yaml")
    assert values(reading)["node_rank"] == 1


def test_llamafactory_elastic() -> None:
    reading = read("FORCE_TORCHRUN=1 MIN_NNODES=1 MAX_NNODES=3 RDZV_ID=x MASTER_ADDR=n0 lmf train a.yaml")
    assert values(reading)["rendezvous_backend"] == "c10d"
    assert only(reading, "nodes").alternatives == (1, 2, 3)


def test_llamafactory_on_one_device_claims_no_nodes() -> None:
    reading = read("llamafactory-cli train a.yaml")
    assert len(reading.launches) == 1
    assert values(reading) == {}


@pytest.mark.parametrize(
    "line",
    ["llamafactory-cli chat a.yaml", "axolotl preprocess a.yaml", "trl env", "tune ls"],
)
def test_cli_other_commands_launch_nothing(line: str) -> None:
    assert read(line).launches == ()


def test_axolotl_builds_a_line_of_its_launcher() -> None:
    reading = read("axolotl train a.yaml -- --num_processes 16 --num_machines 2", a_dot_yaml=ARGUMENTS)
    assert reading.launches[0].launcher == "accelerate"
    assert (values(reading)["world_size"], values(reading)["nodes"]) == (16, 2)
    assert ("a.yaml", "trainer") in [(r.target, r.role) for r in reading.references]
    reading = read("axolotl train a.yaml --launcher torchrun -- --nnodes=2 --nproc_per_node=8 --rdzv_endpoint=n0:29500")
    assert reading.launches[0].launcher == "torchrun"
    assert values(reading)["rendezvous_backend"] == "c10d"


def test_trl_accepts_options_of_accelerate() -> None:
    reading = read(
        "trl sft --config a.yaml --num_processes 4 --bf16 --accelerate_config acc.yaml --gradient_accumulation_steps 2",
        a_dot_yaml=ARGUMENTS,
        acc_dot_yaml="distributed_type: MULTI_GPU\nnum_processes: 8\n",
    )
    assert values(reading)["world_size"] == 4
    assert values(reading)["mixed_precision"] == "bf16"
    assert only(reading, "gradient_accumulation_steps").source == "arguments"
    assert {r.role for r in reading.references} >= {"accelerate", "trainer"}


def test_tune_is_standalone_without_an_endpoint() -> None:
    reading = read("tune run --nproc_per_node 4 lora_finetune_distributed --config llama3/8B")
    assert (values(reading)["processes_per_node"], values(reading)["standalone"]) == (4, True)
    reading = read("tune run --nnodes 2 --nproc_per_node 4 --rdzv_endpoint=n0:1 --rdzv_backend=c10d full --config x")
    assert "standalone" not in values(reading)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--bf16", "bf16"),
        ("--bf16 True", "bf16"),
        ("--bf16=true", "bf16"),
        ("--fp16 False", None),
        ("--tf32 True", None),
    ],
)
def test_switches_of_the_trainer_need_no_value(words: str, expected: str | None) -> None:
    assert values(read(f"torchrun train.py {words} --output_dir out")).get("mixed_precision") == expected


def test_swift_makes_options_of_variables() -> None:
    reading = read("NPROC_PER_NODE=8 NNODES=2 NODE_RANK=$R MASTER_ADDR=n0 swift sft --per_device_train_batch_size 1")
    found = values(reading, source="torchrun")
    assert (found["processes_per_node"], found["nodes"], found["master_addr"]) == (8, 2, "n0")
    assert found["node_rank"] is None
    assert only(reading, "nodes").spelling == "NNODES=2"
    assert only(reading, "micro_batch_size_per_gpu").value.value == 1  # type: ignore[union-attr]
    alone = values(read("swift sft --model gpt2"), source="swift")
    assert (alone["nodes"], alone["processes_per_node"]) == (1, 1)


def test_sudo_takes_variables_of_the_program() -> None:
    reading = read(
        "#!/bin/bash\nsudo -E NNODES=2 NPROC_PER_NODE=8 NODE_RANK=0 MASTER_ADDR=n0 llamafactory-cli train a.yaml\n"
    )
    assert len(reading.launches) == 1
    found = values(reading, source="llamafactory-cli")
    assert (found["nodes"], found["processes_per_node"], found["master_addr"]) == (2, 8, "n0")
