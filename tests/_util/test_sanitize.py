"""Text from files and nodes cannot reach a terminal as anything but text."""

from __future__ import annotations

import unicodedata

import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from preflight._util.hostnames import folded
from preflight._util.sanitize import clean, fold_nodes


@given(st.text())
def test_no_control_character_is_left(text: str) -> None:
    for character in clean(text):
        assert unicodedata.category(character) not in {"Cc", "Cf", "Cs", "Co", "Zl", "Zp"}


@given(st.text(st.characters(categories=["L", "N", "P", "Zs"])))
def test_ordinary_text_in_any_script_is_unchanged(text: str) -> None:
    assert clean(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\tb", "a b"),
        ("a\r\nb", "a  b"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb", "a\\u202eb"),
        ("\u2028", "\\u2028"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
    ],
)
def test_control_characters_are_made_visible(text: str, shown: str) -> None:
    assert clean(text) == shown


def test_newlines_are_kept_on_request() -> None:
    assert clean("a\nb\x07", keep_newlines=True) == "a\nb\\x07"


@pytest.mark.parametrize(
    ("names", "written"),
    [
        ((), ""),
        (("node1",), "node1"),
        (("node1", "node2", "node3", "db"), "db,node[1-3]"),
        (("node01", "node02"), "node[01-02]"),
        (("run.sh:3", "run.sh:9"), "run.sh:3, run.sh:9"),
        (("a[1-9999999999].sh", "b"), "a[1-9999999999].sh, b"),
        (("@all", "@*"), "@all, @*"),
        (("a\x1b[2J", "b"), "a\\x1b[2J, b"),
    ],
)
def test_folding(names: tuple[str, ...], written: str) -> None:
    assert fold_nodes(names) == written


def test_many_nodes_are_folded_and_many_files_are_counted() -> None:
    assert fold_nodes([f"gpu{number}" for number in range(512)]) == "gpu[0-511]"
    assert fold_nodes([f"run.sh:{number}" for number in range(512)]).endswith(" and 500 more")


NUMBERS = st.integers(0, 12) | st.integers(95, 105)
NAMES = st.builds(
    lambda before, width, number, behind: f"{before}{number:0{width}}{behind}",
    st.sampled_from(["n", "rack1-n", "10.0.0.", "r2n"]),
    st.sampled_from([1, 2, 3]),
    NUMBERS,
    st.sampled_from(["", "-ib", ".c1.example"]),
)


@given(st.lists(NAMES | st.sampled_from(["db", "login"]), min_size=2, max_size=12))
def test_names_are_folded_like_clustershell_nodesets(names: list[str]) -> None:
    assert folded(names) == str(NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP))
