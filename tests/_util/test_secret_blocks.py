"""Secrets in blocks of YAML, whole or in the middle of a log."""

from __future__ import annotations

import pytest

from preflight._util.redaction import scrub

SECRET = "zq7Hc41kPw9x"


@pytest.mark.parametrize(
    "text",
    [
        f"api_key: !!str {SECRET}\nnext: 1\n",
        f"? password\n: {SECRET}\n",
        f'"pass\\u0077ord": {SECRET}\nnext: 1\n',
        f"tokens:\n  prod: {SECRET}\n  dev: 3\n",
        f"- name: HF_TOKEN\n  value: |-\n    {SECRET}\n",
        f"credentials:\n  username: me\n  value: {SECRET}\n",
        f"secrets:\n- {SECRET}\n- other\n",
    ],
)
def test_a_value_below_its_name_is_hidden(text: str) -> None:
    assert SECRET not in scrub(text)
    assert SECRET not in scrub(f"INFO config is\n{text}Traceback (most recent call last):\n")


@pytest.mark.parametrize(
    "text",
    [
        "tokens:\n  vocab: gpt2\n  count: 3000000\n",
        "tokenizer:\n  name: meta-llama/Llama-2-7b\n  pad_token: <pad>\n",
        "env:\n- name: NCCL_SOCKET_IFNAME\n  value: |-\n    eth0\n",
        "sort_keys:\n- length\n- text2\n",
        "imagePullSecrets:\n- name: registry-login\n",
        "secret_file:\n  /run/secrets/db\n",
        "secret:\nnext: 12ab34cd56\n",
    ],
)
def test_an_ordinary_value_is_shown(text: str) -> None:
    assert scrub(text) == text
