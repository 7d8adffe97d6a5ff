"""Frameworks that the job's script imports and the ranks' interpreter lacks."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from preflight.model.findings import Severity, Status
from preflight.model.job import Claim, Unresolved
from preflight.model.recording import FactRecord
from preflight_checks.probes.packages import Importable, Source, importable, installed
from preflight_checks.software.packages import (
    imported_framework_missing,
    interpreters_differ,
    package_set_differs,
    packages_overwrite_each_other,
    source_trees_differ,
)
from tests.checks.check_builders import TIMEOUT, claim, fact, facts, fleet, job, judge, one, plan, statuses
from tests.checks.context.test_context import GOOD

PYTHON = "/opt/venv/bin/python3"


def imports(*names: str, condition: str = "") -> list[Claim]:
    return [replace(claim("imported_framework", name), condition=condition) for name in names]


def node(name: str, *missing: str, found: Sequence[str] = (), provenance: str = "interpreter") -> FactRecord:
    value = Importable(PYTHON, list(found), dict.fromkeys(missing, ""))
    return replace(fact(importable, name, value, context=True), provenance=provenance)


def test_the_scripts_imports_are_looked_for_on_every_node() -> None:
    requests = plan(imported_framework_missing, job(imports("torch", "deepspeed")), fleet(2))
    assert [request.node for request in requests] == ["node0", "node1"]
    assert requests[0].params == {"names": ["deepspeed", "torch"], "scripts": ["train.sh"]} and requests[0].context
    assert plan(imported_framework_missing, job(), fleet(2)) == []


def test_a_framework_that_all_nodes_lack_is_an_error() -> None:
    of = job(imports("torch", "deepspeed"))
    seen = facts(node("node0", "deepspeed", found=["torch"]), node("node1", "deepspeed", found=["torch"]))
    found = one(judge(imported_framework_missing, of, fleet(2), seen), Status.FAIL)
    assert found.message == f"train.sh imports deepspeed, which {PYTHON} does not find on node0, node1"
    assert found.nodes == ("node0", "node1")


def test_one_node_and_a_distribution_without_its_files() -> None:
    of = job(imports("flash_attn"))
    broken = fact(importable, "node1", Importable(PYTHON, [], {"flash_attn": "flash-attn"}), context=True)
    seen = facts(node("node0", found=["flash_attn"]), broken)
    found = one(judge(imported_framework_missing, of, fleet(2), seen), Status.FAIL)
    assert found.nodes == ("node1",) and "although its distribution flash-attn is installed" in found.message


def test_a_name_that_cannot_be_looked_for_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "broken_finder.py").write_text(
        "import sys\nclass F:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'odd': raise RuntimeError('no such drive')\nsys.meta_path.insert(0, F())\n"
    )
    program = (
        f"import sys; sys.path[:0] = {[str(tmp_path), *sys.path]!r}; import broken_finder\n"
        "from preflight_checks.probes.packages import importable\n"
        "found = importable({'names': ['json', 'odd', 'not_there']})\n"
        "print(found.found, dict(found.missing), found.undecided)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['json'] {'not_there': ''} {'odd': 'RuntimeError: no such drive'}"
    value = Importable(PYTHON, ["torch"], {}, undecided={"deepspeed": "RuntimeError: no such drive"})
    seen = facts(fact(importable, "node0", value, context=True))
    said = judge(imported_framework_missing, job(imports("torch", "deepspeed")), fleet(1), seen)
    assert [verdict.status for verdict in said] == [Status.UNKNOWN]
    assert "no such drive" in said[0].message and "node0" in said[0].message


def test_everything_found_passes_and_a_silent_node_is_unknown() -> None:
    of = job(imports("torch"))
    said = judge(imported_framework_missing, of, fleet(2), facts(node("node0", found=["torch"])))
    assert one(said, Status.PASS).subject == "torch on 1 nodes"
    said = judge(imported_framework_missing, of, fleet(1), facts(fact(importable, "node0", TIMEOUT, context=True)))
    assert one(said, Status.UNKNOWN).message == "no answer within 5 s"
    assert one(judge(imported_framework_missing, job(), fleet(1), facts()), Status.NOT_APPLICABLE)


@pytest.mark.parametrize(
    ("more", "word"),
    [
        ({"installing_line": ("deepspeed",)}, "installs packages"),
        ({"prelude": "module load deepspeed"}, "were not run"),
        ({"container": "image"}, "container"),
        ({"env_PYTHONPATH": Unresolved("$PYTHONPATH is not known")}, "is known only at run time"),
        ({"env_PYTHONPATH": "/opt/lib"}, "--trust-job to apply it"),
    ],
)
def test_what_may_provide_it_makes_it_unknown(more: dict[str, object], word: str) -> None:
    of = job(imports("deepspeed"), **more)
    seen = facts(
        node("node0", "deepspeed", provenance="interpreter x, no variables of the job (--trust-job uses them)")
    )
    found = one(judge(imported_framework_missing, of, fleet(1), seen), Status.UNKNOWN)
    assert word in found.message and not found.required


def test_what_was_done_leaves_no_doubt() -> None:
    of = job(imports("deepspeed"), prelude="module load x", env_PYTHONPATH="/opt/lib")
    seen = facts(
        node("node0", "deepspeed", provenance="interpreter x, 1 variable of the job, 1 setup lines of the job")
    )
    assert one(judge(imported_framework_missing, of, fleet(1), seen), Status.FAIL)


def test_a_changed_search_path_is_unknown() -> None:
    of = job(imports("megatron", condition="after a change of sys.path"))
    found = one(judge(imported_framework_missing, of, fleet(1), facts(node("node0", "megatron"))), Status.UNKNOWN)
    assert "imported after a change of sys.path" in found.message


# The probe


def test_the_probe_imports_nothing_and_looks_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "beside_it.py").write_text("raise SystemExit('imported')\n")
    (tmp_path / "leftover-1.0.dist-info").mkdir()
    (tmp_path / "leftover-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: leftover\nVersion: 1\n")
    (tmp_path / "leftover-1.0.dist-info" / "top_level.txt").write_text("leftover_package\n")
    code = (
        "import json, sys\n"
        "from preflight.agent.child import plain\n"
        "from preflight_checks.probes.packages import importable\n"
        "names = ['json', 'torch', 'beside_it', 'nowhere_at_all', 'leftover_package']\n"
        "print(json.dumps(plain(importable({'names': names, 'scripts': ['src/train.py']}))))\n"
        "assert 'torch' not in sys.modules and 'beside_it' not in sys.modules\n"
    )
    import json

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    value = json.loads(done.stdout)
    assert value["executable"] == sys.executable
    assert value["missing"] == {"nowhere_at_all": "", "leftover_package": "leftover"}
    assert {"json", "beside_it"} <= set(value["found"])


# Packages and interpreters that differ from node to node.


PACKAGES = {"numpy": "1.26.4", "tqdm": "4.66.1", "torch": "2.4.0"}


def packages_node(name: str, packages: dict[str, str] | None = None, **changes: Any) -> FactRecord:
    held = {**PACKAGES, **(packages or {})}
    held = {name: version for name, version in held.items() if version}
    value = replace(GOOD, distributions=held, digest=str(sorted(held.items())), **changes)
    return fact(installed, name, value, context=True)


def test_one_node_needs_no_comparison() -> None:
    for check in (package_set_differs, interpreters_differ, source_trees_differ):
        assert plan(check, job(), fleet(1)) == []
        assert statuses(judge(check, job(), fleet(1), facts())) == {"not-applicable"}
    assert len(plan(packages_overwrite_each_other, job(), fleet(1))) == 1


def test_equal_nodes_pass() -> None:
    same = facts(*(packages_node(f"node{index}") for index in range(3)))
    for check in (package_set_differs, interpreters_differ, source_trees_differ, packages_overwrite_each_other):
        assert statuses(judge(check, job(), fleet(3), same)) == {"pass"}


def test_lockstep_packages_are_warnings_and_others_information() -> None:
    odd = {"numpy": "2.1.0", "tqdm": "4.1.0", "torch": "2.1.0"}
    said = judge(
        package_set_differs,
        job(),
        fleet(3),
        facts(packages_node("node0"), packages_node("node1"), packages_node("node2", odd)),
    )
    warned, told = sorted((v for v in said if v.status is Status.FAIL), key=lambda v: v.severity is not None)
    assert warned.nodes == told.nodes == ("node2",)
    assert "numpy 2.1.0 on node2 (1.26.4)" in warned.message and "tqdm" not in warned.message
    assert told.severity is Severity.INFO and "tqdm" in told.message
    assert not any("torch" in verdict.message for verdict in said), "VER003 speaks of frameworks"


def test_a_package_missing_on_one_node_is_named() -> None:
    seen = facts(packages_node("node0"), packages_node("node1"), packages_node("node2", {"numpy": ""}))
    assert "numpy none on node2 (1.26.4)" in one(judge(package_set_differs, job(), fleet(3), seen), Status.FAIL).message


def test_many_packages_of_one_node_are_one_finding() -> None:
    odd = {f"package-{index}": "1.0" for index in range(40)}
    found = one(
        judge(package_set_differs, job(), fleet(2), facts(packages_node("node0"), packages_node("node1", odd))),
        Status.FAIL,
    )
    assert "40 packages differ" in found.message and "and 32 more" in found.message


def test_a_node_with_the_systems_python() -> None:
    seen = facts(
        packages_node("node0"),
        packages_node("node1"),
        packages_node("node2", kind="system", resolved="/usr/bin/python3.9"),
    )
    found = one(judge(interpreters_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "kind of environment" in found.message


def test_wheels_for_another_processor() -> None:
    odd = packages_node("node2", machine="aarch64", abi="cpython-311-aarch64")
    found = one(
        judge(interpreters_differ, job(), fleet(3), facts(packages_node("node0"), packages_node("node1"), odd)),
        Status.FAIL,
    )
    assert "aarch64" in found.message and found.severity is None


def test_a_different_path_is_information() -> None:
    seen = facts(
        packages_node("node0"), packages_node("node1"), packages_node("node2", resolved="/opt/py/bin/python3.11")
    )
    assert one(judge(interpreters_differ, job(), fleet(3), seen), Status.FAIL).severity is Severity.INFO


def test_a_source_tree_at_another_commit() -> None:
    trees = [{"megatron-lm": Source("/srv/Megatron-LM", commit * 40)} for commit in "aab"]
    seen = facts(*(packages_node(f"node{index}", sources=tree) for index, tree in enumerate(trees)))
    found = one(judge(source_trees_differ, job(), fleet(3), seen), Status.FAIL)
    assert found.nodes == ("node2",) and "bbbbbbbbbbbb" in found.message


def test_two_distributions_of_the_same_files() -> None:
    both = packages_node("node1", {"paddlepaddle": "2.6.1", "paddlepaddle-gpu": "2.6.1"})
    found = one(judge(packages_overwrite_each_other, job(), fleet(2), facts(packages_node("node0"), both)), Status.FAIL)
    assert found.nodes == ("node1",) and "uninstall paddlepaddle paddlepaddle-gpu" in found.remedy
    twice = facts(packages_node("node0", twice={"torch": ["2.3.0", "2.4.0"]}))
    assert (
        "torch 2.3.0 and torch 2.4.0"
        in one(judge(packages_overwrite_each_other, job(), fleet(1), twice), Status.FAIL).message
    )


def test_unknown_without_facts() -> None:
    blind = facts(*(fact(installed, f"node{index}", TIMEOUT, context=True) for index in range(2)))
    for check in (package_set_differs, interpreters_differ, source_trees_differ, packages_overwrite_each_other):
        assert statuses(judge(check, job(), fleet(2), blind)) == {"unknown"}


def test_a_large_fleet_lists_key_packages_and_a_digest() -> None:
    asked = plan(package_set_differs, job(), fleet(200))
    assert "numpy" in asked[0].params["only"] and plan(package_set_differs, job(), fleet(4))[0].params == {}
    digests = [fact(installed, f"node{i}", replace(GOOD, digest="ab"[i == 2]), context=True) for i in range(3)]
    found = one(judge(package_set_differs, job(), fleet(3), facts(*digests)), Status.FAIL)
    assert found.nodes == ("node2",) and found.severity is Severity.INFO
