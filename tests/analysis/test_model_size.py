"""A transformer's arithmetic against published figures."""

from __future__ import annotations

import pytest

from preflight.analysis.model_size import GIB, TransformerShape, format_gibibytes, format_parameters, parameters_in_name
from preflight_rules.sizes.memory import named_gpu


def shape(layers: int, hidden: int, heads: int, **more: int) -> TransformerShape:
    """A shape with four times the width in its feed-forward part."""
    return TransformerShape(
        layers=layers,
        hidden=hidden,
        feed_forward=more.get("feed_forward", 4 * hidden),
        heads=heads,
        groups=more.get("groups", heads),
        gated=bool(more.get("gated", 0)),
        experts=more.get("experts", 1),
        expert_width=more.get("expert_width", more.get("feed_forward", 4 * hidden)),
        expert_layers=more.get("expert_layers", layers if more.get("experts", 1) > 1 else 0),
        vocabulary=more.get("vocabulary", 0),
        sequence=more.get("sequence", 2048),
        claims=(),
    )


@pytest.mark.parametrize(
    ("found", "published"),
    [
        (shape(96, 12288, 96, vocabulary=51200), 175e9),  # GPT-3, arXiv 2005.14165
        (shape(32, 4096, 32, feed_forward=11008, gated=1, vocabulary=32000), 6.7e9),  # Llama 1, arXiv 2302.13971
        (shape(80, 8192, 64, groups=8, feed_forward=28672, gated=1, vocabulary=32000), 69e9),  # Llama 2
        (shape(32, 4096, 32, groups=8, feed_forward=14336, gated=1, experts=8), 46.7e9),  # Mixtral, 2401.04088
    ],
)
def test_parameters_are_a_little_less_than_published(found: TransformerShape, published: float) -> None:
    assert 0.95 * published < found.parameters <= 1.01 * published


def test_activations_of_the_paper() -> None:
    # arXiv 2205.05198, figure 1: GPT-3 with tensor parallelism 8 and sequence parallelism, selective recomputation.
    gpt = shape(96, 12288, 96)
    split = gpt.activation_bytes(1, tensor=8, recompute="selective", sequence_parallel=True)
    assert split == 96 * 2048 * 12288 * 34 // 8
    assert gpt.activation_bytes(1, tensor=8, recompute="selective", sequence_parallel=False) > split
    assert gpt.activation_bytes(1, tensor=8, recompute="full", sequence_parallel=True) == 96 * 2 * 2048 * 12288


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("meta-llama/Llama-2-70b-hf", 70e9),
        ("Qwen/Qwen2.5-0.5B", 0.5e9),
        ("EleutherAI/pythia-410m", 410e6),
        ("mistralai/Mixtral-8x7B-v0.1", 56e9),
        ("/models/opt-13b/", 13e9),
        ("bert-base-uncased", None),
        ("gpt2", None),
        ("llama-7b-to-13b", None),
        ("checkpoint-1000", None),
    ],
)
def test_sizes_in_names(name: str, parameters: float | None) -> None:
    assert parameters_in_name(name) == parameters


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        ("a100", 80),
        ("nvidia_a100_40gb", 40),
        ("v100-16g", 16),
        ("Tesla-V100-SXM2-32GB", 32),
        ("NVIDIA-H100-80GB-HBM3", 94),
        ("p4d.24xlarge", 40),
        ("a100_3g.20gb", None),
        ("a100|h100", None),
        ("gpu_p5", None),
        ("batch", None),
    ],
)
def test_gpus_by_name(text: str, memory: float | None) -> None:
    gpu = named_gpu(text)
    assert (gpu.memory_gib if gpu is not None else None) == memory


def test_sizes_are_formatted_for_people() -> None:
    assert format_parameters(6_738_000_000) == "6.74 billion parameters"
    assert format_parameters(350_000_000) == "350 million parameters"
    assert format_gibibytes(112.4 * GIB) == "112 GiB"
    assert format_gibibytes(1542 * GIB) == "1542 GiB"
