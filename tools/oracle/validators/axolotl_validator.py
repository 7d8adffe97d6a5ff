"""Validates the configuration of a case with axolotl's own schema, as `axolotl train` does before it loads a model."""

import contextlib
import copy
import pathlib
import unittest.mock

import axolotl.utils.schemas.config as schema
import yaml
from axolotl.cli.config import gpu_capabilities, prepare_plugins
from axolotl.utils.config import validate_config
from axolotl.utils.dict import DictDefault
from pydantic import ValidationError
from verdict_lines import Refusal, main

#: What axolotl finds on a node with eight recent GPUs, and on one with a single one.
EIGHT, ONE = (
    (
        {"bf16": True, "fp8": True, "tf32": True, "n_gpu": number, "compute_capability": "sm_90"},
        {"torch_version": "2.13.0"},
    )
    for number in (8, 1)
)
#: True while axolotl is asked as on such a node.
ON_NODE = []


def validate(case):
    """Raise what the schema raises.

    On a node with recent GPUs: the errors for any number of GPUs; here: also the errors for eight.
    """
    if not ON_NODE:
        _validate(EIGHT)
        _validate(gpu_capabilities())
        return
    try:
        _validate(EIGHT)
    except Exception:
        _validate(ONE)


def _validate(node):
    cfg = DictDefault(yaml.safe_load(pathlib.Path("config.yml").read_text(encoding="utf-8")))
    prepare_plugins(cfg)
    capabilities, env_capabilities = copy.deepcopy(node)
    try:
        validate_config(cfg, capabilities=capabilities, env_capabilities=env_capabilities)
    except ValidationError as error:
        found = (f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors(include_input=False))
        raise Refusal("\n".join(found)) from None


@contextlib.contextmanager
def on_gpu_node():
    """Simulate a node with recent GPUs and the optional packages."""
    ON_NODE.append(True)
    try:
        with unittest.mock.patch.object(schema, "is_fp8_available", lambda: True):
            yield
    finally:
        ON_NODE.clear()


if __name__ == "__main__":
    main(validate, on_gpu_node)
