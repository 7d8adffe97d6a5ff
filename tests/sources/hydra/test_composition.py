from __future__ import annotations

from pathlib import Path

import pytest

from preflight._util.budget import Budget, BudgetExceeded, Limits
from preflight.model.job import Known, OneOf, Strength
from preflight.sources.formats.tree import DirectoryTree
from preflight.sources.given_variables import defaults_assumed
from preflight.sources.hydra.composition import compose_config
from preflight.sources.hydra.configuration import ConfigFolders, Leaf
from tests.sources.hydra.composing import compose, kinds, plain

FILES = {
    "config.yaml": "defaults:\n  - model: small\n  - _self_\ntrainer:\n  nodes: 2\n  gpus: 8\n",
    "model/small.yaml": "layers: 12\nname: small\n",
    "model/large.yaml": "layers: 96\nname: large\n",
}


def test_a_group_goes_below_its_name() -> None:
    assert plain(compose(FILES)) == {
        "model": {"layers": 12, "name": "small"},
        "trainer": {"nodes": 2, "gpus": 8},
    }


def test_an_override_selects_from_a_group_or_changes_a_value() -> None:
    found = compose(FILES, "model=large", "trainer.nodes=4", "+trainer.steps=10", "~trainer.gpus", "++seed=1")
    assert plain(found) == {
        "model": {"layers": 96, "name": "large"},
        "trainer": {"nodes": 4, "steps": 10},
        "seed": 1,
    }
    assert kinds(found) == []


def test_a_value_has_its_location_and_the_value_it_replaced() -> None:
    leaf = compose(FILES, "trainer.nodes=4").leaf("trainer.nodes")
    assert isinstance(leaf, Leaf) and isinstance(leaf.before, Leaf)
    assert (leaf.value, leaf.place.strength, leaf.place.spelling) == (Known(4), Strength.FLAG, "trainer.nodes=4")
    assert (leaf.before.value, leaf.before.place.span.path, leaf.before.place.span.line) == (
        Known(2),
        "conf/config.yaml",
        5,
    )


@pytest.mark.parametrize(
    ("files", "overrides", "kind"),
    [
        ({}, ["trainer.node=4"], "unknown-key"),
        ({}, ["train.nodes=4"], "unknown-key"),
        ({}, ["model=huge"], "missing-config"),
        ({}, ["~trainer.steps"], "nothing-to-delete"),
        ({}, ["+trainer.nodes=4"], "already-there"),
        ({}, ["trainer=[1]"], "other-kind"),
        ({"config.yaml": "defaults:\n  - model: ???\n"}, [], "not-chosen"),
        ({"config.yaml": "defaults:\n  - override model: small\n"}, [], "unused-choice"),
        ({"config.yaml": "defaults:\n  - model: small\n  - model: large\n"}, [], "chosen-twice"),
        ({"config.yaml": "defaults: {model: small}\n"}, [], "malformed-defaults"),
        ({"config.yaml": "defaults:\n  - other\n", "other.yaml": "defaults:\n  - config\n"}, [], "endless"),
    ],
)
def test_refusals_are_those_of_hydra(files: dict[str, str], overrides: list[str], kind: str) -> None:
    assert kinds(compose({**FILES, **files}, *overrides)) == [kind]


def test_missing_files_cause_no_refusal() -> None:
    found = compose(FILES, "trainer.node=4", "other=x", incomplete="a package that is installed")
    assert kinds(found) == []


def test_packages() -> None:
    files = {
        "config.yaml": "defaults:\n  - model@actor: small\n  - model@critic.net: large\n  - /top\n"
        "  - optional gone: x\n",
        "model/small.yaml": FILES["model/small.yaml"],
        "model/large.yaml": FILES["model/large.yaml"],
        "top.yaml": "# @package _global_\nseed: 1\n",
    }
    assert plain(compose(files, "model@actor=large")) == {
        "actor": {"layers": 96, "name": "large"},
        "critic": {"net": {"layers": 96, "name": "large"}},
        "seed": 1,
    }


def test_the_place_of_self_decides() -> None:
    files = {"config.yaml": "defaults:\n  - _self_\n  - base\nx: 1\n", "base.yaml": "x: 2\n"}
    assert plain(compose(files)) == {"x": 2}
    files["config.yaml"] = "defaults:\n  - base\n  - _self_\nx: 1\n"
    assert plain(compose(files)) == {"x": 1}


def test_a_choice_in_a_name() -> None:
    files = {
        **FILES,
        "config.yaml": "defaults:\n  - model: small\n  - opt: ${model}\n",
        "opt/small.yaml": "lr: 1e-3\n",
        "opt/large.yaml": "lr: 1e-4\n",
    }
    assert plain(compose(files))["opt"] == {"lr": 1e-3}  # type: ignore[index]
    assert plain(compose(files, "model=large"))["opt"] == {"lr": 1e-4}  # type: ignore[index]


def test_interpolations() -> None:
    text = (
        "n: 2\nsub:\n  g: 8\n  same: ${.g}\n  up: ${..n}\n  text: n${n}-g${sub.g}\n  all: ${oc.select:gone,7}\n"
        "  deep: ${sub.${name}}\n  time: ${now:%Y}\n  own: ${eval:'2*3'}\nname: g\nlist: [1, 4]\nsecond: ${list.1}\n"
        "part: ${sub}\ninner: ${part.g}\n"
    )
    found = compose({"config.yaml": text})
    assert {key: found.value(key) for key in ("sub.same", "sub.up", "sub.text", "sub.all", "sub.deep", "second")} == {
        "sub.same": Known(8),
        "sub.up": Known(2),
        "sub.text": Known("n2-g8"),
        "sub.all": Known(7),
        "sub.deep": Known(8),
        "second": Known(4),
    }
    assert found.value("inner") == Known(8) and found.value("part.g") == Known(8)
    shown = plain(found)
    assert isinstance(shown, dict)
    assert shown["sub"]["own"].startswith("<${eval:...}") and shown["sub"]["time"].startswith("<${now:...}")


def test_variables_of_the_launch_and_their_defaults() -> None:
    files = {"config.yaml": "n: ${oc.env:NNODES,2}\nm: ${oc.env:NODES}\np: ${TEAM:amd}\n"}
    found = compose(files, environment={"NNODES": OneOf(("2", "4"))})
    assert found.value("n") == OneOf(("2", "4"))
    assert plain(compose(files)) == {
        "n": "<$NNODES, set by the caller, default 2>",
        "m": "<$NODES, which the caller sets>",
        "p": "<$TEAM, set by the caller, default amd>",
    }
    with defaults_assumed() as assumed:
        assert compose(files).value("n") == Known("2")
    assert assumed["NNODES"] == "2"


@pytest.mark.parametrize(
    "text",
    [
        "a: ${b}\nb: ${a}\n",
        "a: ${a}\n",
        "a: ${gone}\n",
        "a: '${b'\n",
        "a:\n  b: ${a}\n",
        "a: ${b}\nb: ???\n",
        "a: ${..b}\nb: 1\n",
    ],
)
def test_unresolvable_interpolations_have_no_value(text: str) -> None:
    found = compose({"config.yaml": text})
    assert found.value("a") is None or found.value("a.b") is None


def test_a_chain_of_references_ends() -> None:
    lines = [f"k{index}: ${{k{index + 1}}}" for index in range(300)]
    assert compose({"config.yaml": "\n".join(lines)}).value("k0") is None


def test_damaged_files() -> None:
    assert plain(compose({"config.yaml": "a: 1\nb: [1,\nc: 2\n"})) in ({"a": 1}, {})
    assert plain(compose({"config.yaml": "- 1\n"})) == {}
    assert plain(compose({"config.yaml": ""})) == {}


def test_a_hostile_tree_stays_within_the_budget() -> None:
    """Each configuration includes two others, twenty deep: a million without a limit."""
    files = {f"c{i}.yaml": f"defaults:\n  - c{i + 1}@a{i}\n  - c{i + 1}@b{i}\nx: 1\n" for i in range(20)}
    files["c20.yaml"] = "x: 1\n"
    budget = Budget(Limits())
    try:
        with budget.watched():
            found = budget.attempt(lambda: compose(files, name="c0"))
    except BudgetExceeded:
        return
    assert kinds(found) == ["endless"]


def test_a_link_into_a_submodule_that_is_not_there_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text("defaults:\n  - base\nseed: 1\n")
    (tmp_path / "conf" / "base.yaml").symlink_to("../submodule/base.yaml")
    found = compose_config(ConfigFolders(DirectoryTree(tmp_path), ("conf",), ""), "config", [], {})
    assert kinds(found) == []
    assert "it may be in a submodule" in found.resolver.incomplete
