from __future__ import annotations

import json
from typing import Any

import pytest

from preflight.model.job import Known, Plain
from preflight.sources.base import SourceFile
from preflight.sources.configs.model_config import ModelConfigSource, config_of
from preflight.sources.formats.tree import MemoryTree

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
def test_invalid_files_do_not_raise(text: str) -> None:
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
