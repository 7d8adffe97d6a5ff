from __future__ import annotations

from preflight.model.job import Known, Unresolved
from tests.sources.launchers.reading_lines import only, read, values


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
