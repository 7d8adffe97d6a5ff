"""Reads files of PaddlePaddle's own: the configuration of PaddleRec, and the index files of PaddlePaddle 0.x.

Sources: doc/yaml.md and tools/utils/static_ps/program_helper.py of PaddleRec (2.0 to 2.3, one `runner` mapping);
doc/yaml.md and core/trainers of 1.8.5 (a list of runners, of which `mode` selects those that run).

Source: doc/howto/cluster and the data providers of PaddlePaddle 0.8 to 0.11 (`define_py_data_sources2`).
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from dataclasses import replace

from preflight._util.budget import note_skipped
from preflight._util.spans import MAX_SNIPPET_LENGTH
from preflight.model.job import WHOLE_JOB, Claim, Known, Scope, Span, Strength, Value, lift
from preflight.model.job.value import Plain
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.configs.framework_files import state_settings
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.structured import Kind, Member, Node, NodeClaims, document_of, value_of

#: The role in which other files refer to such a file.
ROLE = "paddlerec"
_RUNNER = re.compile(r"^runner[ \t]*:", re.MULTILINE)
#: Keys below `runner` that no other framework has there.
_OWN_KEYS = re.compile(
    r"^[ \t]+(?:-[ \t]+)?(?:train_reader_path|infer_reader_path|sync_mode|fleet_mode|distribute_strategy"
    r"|infer_load_path|save_checkpoint_interval|phases|class[ \t]*:[ \t]*(?:cluster_)?(?:train|infer))[ \t]*[:#\r\n]",
    re.MULTILINE,
)


class PaddleRecSource:
    """Reads one configuration of PaddleRec."""

    name = "paddlerec"
    roles = (ROLE,)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is YAML with a runner that has PaddleRec's keys."""
        if not file.path.lower().endswith((".yaml", ".yml")) or _RUNNER.search(file.text) is None:
            return False
        return _OWN_KEYS.search(file.text) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the claims of the runners and of the network's parameters."""
        document = document_of(file)
        node_claims = NodeClaims(file, self.name, scope)
        notes = tuple(node_claims.notes(document))
        root = document.root
        if root is not None and root.kind is Kind.OBJECT:
            _state(node_claims, root)
            state_settings(node_claims, root, self.name, only=("runner",))
        return Reading(claims=tuple(node_claims.claims), notes=notes, suppressions=suppressions(file))


def _state(node_claims: NodeClaims, root: Node) -> None:
    runner = root.member("runner")
    if runner is not None and runner.node.kind is Kind.OBJECT:
        node_claims.add_member("ps_update_mode", runner.node.member("sync_mode"), _mode)
        node_claims.add_member("dataset_files_shared", runner.node.member("split_file_list"))
        node_claims.add_member("data_path", runner.node.member("train_data_dir"))
        node_claims.add_member("geo_steps", runner.node.member("geo_step"))
        node_claims.add_member("dataloader_workers", runner.node.member("num_workers"))
    elif runner is not None and runner.node.kind is Kind.ARRAY:
        _state_runners(node_claims, root, runner)
    optimizer = root.member("hyper_parameters", "optimizer")
    if optimizer is not None and optimizer.node.kind is Kind.OBJECT:
        node_claims.add_member("optimizer", optimizer.node.member("class"), _text)
        if runner is not None and runner.node.kind is Kind.OBJECT:
            node_claims.add_member("ps_update_mode", optimizer.node.member("strategy"), _mode)
    rows = root.member("hyper_parameters", "sparse_feature_number")
    width = root.at("hyper_parameters", "sparse_feature_dim")
    if rows is not None and width is not None:
        node_claims.add("embedding_shape", lift(_shape, value_of(rows.node), value_of(width)), rows)


def _state_runners(node_claims: NodeClaims, root: Node, runner: Member) -> None:
    """The runners of the older generation; `mode` selects those that run."""
    items = [item for item in runner.node.items if item.kind is Kind.OBJECT]
    names = tuple(item.text("name") for item in items)
    if names and all(names) and len(items) == len(runner.node.items):
        node_claims.add("runner_names", Known(names), runner)
    mode = root.member("mode")
    node_claims.add_member("runner_mode", mode, lambda value: lift(_as_list, value))
    running = set(_names(mode))
    for item in items:
        if running and item.text("name") not in running:
            continue
        kind = item.member("class")
        node_claims.add_member("runner_class", kind, _text)
        if kind is None or item.text("class") != "cluster_train":
            reason = item.member("distribute_strategy") or item.member("fleet_mode")
            if reason is not None and kind is not None:
                node_claims.add_member("runner_not_distributed", reason, _text)
            continue
        fleet = item.member("fleet_mode")
        node_claims.add_member("ps_mode", fleet, lambda value: lift(_is_server, value))
        if fleet is None or item.text("fleet_mode") == "ps":
            node_claims.add_member("ps_update_mode", item.member("distribute_strategy"), _mode)


def _names(mode: Member | None) -> Iterator[str]:
    if mode is None:
        return
    for node in (mode.node, *mode.node.items):
        if node.kind is Kind.SCALAR and isinstance(node.value, str):
            yield node.value


def _as_list(item: Plain) -> Plain:
    return item if isinstance(item, tuple) else (item,)


def _text(value: Value) -> Value:
    return lift(str, value)


def _mode(value: Value) -> Value:
    return lift(lambda item: str(item).strip().lower().replace("half_async", "half-async"), value)


def _is_server(item: Plain) -> Plain:
    return str(item).lower() in ("ps", "pslib")


def _shape(rows: Plain, width: Plain) -> Plain:
    if not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in (rows, width)):
        raise TypeError("sizes must be whole numbers")
    return (int(str(rows)), int(str(width)))


#: Longer lists are data; only their beginning is kept.
MAX_FILES = 10_000


class IndexListSource:
    """Reads one index file."""

    name = "index"
    roles = ("index",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it has the name of an index file and its first lines are paths, one per line and nothing else."""
        if posixpath.basename(file.path) not in ("train.list", "test.list"):
            return False
        head = [line.strip() for line in file.text[:2048].split("\n")[:20] if line.strip()]
        return all(len(line.split()) == 1 for line in head)

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the files it lists; each line's location is in `because`."""
        lines: list[Claim] = []
        for number, raw in enumerate(file.text.split("\n"), start=1):
            name = raw.strip()
            if name and len(lines) >= MAX_FILES:
                note_skipped(f"only the first {MAX_FILES} files of the list were read")
                break
            if name:
                column = raw.index(name[0]) + 1
                span = Span(
                    file.path, number, column, number, column + len(name), raw.rstrip("\r")[:MAX_SNIPPET_LENGTH]
                )
                lines.append(Claim("index_files", Known((name,)), span, name[:120], self.name, scope, Strength.CONFIG))
        names = tuple(str(value[0]) for line in lines for value in line.alternatives if isinstance(value, tuple))
        first = lines[0].span if lines else Span(file.path, 1, 1, 1, 1)
        whole = replace(first, end_line=lines[-1].span.line) if lines else first
        spelling = lines[0].spelling if lines else posixpath.basename(file.path)
        found = Claim("index_files", Known(names), whole, spelling, self.name, scope, Strength.CONFIG)
        return Reading(claims=(replace(found, because=tuple(lines)),))
