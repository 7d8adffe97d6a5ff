"""The suite for the executors that need no scheduler: this machine, and ssh."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.cluster import Cluster, faults
from tests.executors.conformance import SCRIPTS, Break, Broken, Conformance, World, names, python_faults

pytestmark = pytest.mark.thorough
_PYTHON = sys.executable


class TestSsh(Conformance):
    """Over the real client to real daemons."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        """Four nodes with sshd."""
        broken = cluster.node("node3")

        @contextmanager
        def frozen() -> Iterator[Broken]:
            with faults.sshd_frozen(broken):
                yield Broken("node3", kinds=("timeout",), words=("does not answer",))

        ways = {**python_faults(broken, "node3"), "silent": frozen}
        yield World(cluster, cluster.head, names(cluster.nodes), ("--on", "ssh", "--hosts", "node[1-4]"), **ways)


class TestLocal(Conformance):
    """Every node is the head itself."""

    @pytest.fixture(scope="class")
    @classmethod
    def world(cls, cluster: Cluster) -> Iterator[World]:
        """Three nodes on one machine; one of them gets a broken interpreter."""
        head = cluster.head

        def broken(how: str, script: str, result: Broken, *, once: bool = True) -> Break:
            @contextmanager
            def inject() -> Iterator[Broken]:
                # The first one makes the folder; only that one is broken.
                head.run(["rm", "-rf", "/run/first"])
                first = 'mkdir /run/first 2>/dev/null || exec $REAL "$@"\n' if once else ""
                head.write_text("/run/python", f"#!/bin/sh\nREAL={_PYTHON}\n{first}{script}\n")
                head.must(["chmod", "755", "/run/python"])
                yield replace(result, arguments=("--on-option", "python=/run/python"))

            return inject

        ways = {how: broken(how, script, result) for how, (script, result) in SCRIPTS.items()}
        gone = Broken(kinds=("missing",), words=("cannot be run",))
        unsupported = {"test_invalid_host_name_is_rejected": "names of nodes go nowhere: each is this machine"}
        yield World(
            cluster,
            head,
            {f"local{index}": "head" for index in range(3)},
            ("--on", "local", "--count", "3"),
            **ways,
            without_python=broken("gone", "exit 127", gone),
            unsupported=unsupported,
        )
