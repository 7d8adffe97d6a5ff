"""Prints the keys of verl's composed configuration, and the groups that a line can choose from."""

import json
import pathlib
import sys

import verl_validator
from hydra import compose, initialize_config_module
from omegaconf import DictConfig, OmegaConf


def rows(section, above):
    """Yield the rows of a section: Hydra refuses to set a key that it does not have."""
    for key in section:
        path = f"{above}.{key}" if above else str(key)
        missing = OmegaConf.is_missing(section, key) or OmegaConf.is_interpolation(section, key)
        inner = None if missing else section[key]
        if isinstance(inner, DictConfig):
            yield {"key": path, "kind": "any", "closed": True}
            yield from rows(inner, path)
        else:
            yield {"key": path, "kind": "any"}


def main():
    folder = pathlib.Path(verl_validator.model.__file__).parents[2] / "trainer" / "config"
    groups = sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("_"))
    with initialize_config_module("verl.trainer.config", version_base=None):
        found = list(rows(compose("ppo_trainer"), ""))
    known = {row["key"] for row in found}
    found += [{"key": name, "kind": "any"} for name in groups if name not in known]
    json.dump(found, sys.stdout)


main()
