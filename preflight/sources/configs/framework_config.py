"""Reads a framework's configuration file that no launch names: NeMo-RL, AReaL, Primus, EasyR1."""

from __future__ import annotations

import re

from preflight.model.job import WHOLE_JOB, Note, NoteKind, Reference, Scope
from preflight.sources.base import Reading, SourceFile, Tree
from preflight.sources.formats.comments import suppressions
from preflight.sources.formats.open import document_of
from preflight.sources.formats.structured import NodeClaims
from preflight.sources.hydra.framework_claims import claims_of
from preflight.sources.hydra.run_config import file_config

_HEAD = 60_000
#: Top-level keys which, together with a key below, only such a file has.
_TOP = re.compile(r"^(cluster|grpo|policy|allocation_mode|modules|worker|defaults):", re.MULTILINE)
_BELOW = re.compile(
    r"^[ \t]+(?:num_nodes|gpus_per_node|n_nodes|n_gpus_per_node|train_global_batch_size|pre_trainer|post_trainer"
    r"|sft_trainer|rollout|generation|megatron_cfg|dtensor_cfg):",
    re.MULTILINE,
)
_PARENT = re.compile(r"^defaults:[ \t]*(?:[\"']?[\w./-]+\.ya?ml|\n[ \t]*-[ \t]*[\"']?[\w./-]+\.ya?ml)", re.MULTILINE)


class FrameworkConfigSource:
    """Reads one configuration file by the keys of its framework."""

    name = "framework"
    roles = ("composed",)

    def recognises(self, file: SourceFile) -> bool:
        """Whether it is YAML with the sections of one of these frameworks."""
        if not file.path.lower().endswith((".yaml", ".yml")):
            return False
        head = file.text[:_HEAD]
        tops = {match[1] for match in _TOP.finditer(head)}
        if "apiVersion:" in head[:2000]:
            return False
        # A child of another file may change as little as one key.
        if "defaults" in tops and _PARENT.search(head) and tops & {"cluster", "grpo", "policy"}:
            return True
        return bool(tops - {"defaults"}) and _BELOW.search(head) is not None

    def read(self, file: SourceFile, tree: Tree, *, scope: Scope = WHOLE_JOB, role: str = "") -> Reading:
        """State the sizes of the job, including those from files that it inherits from."""
        document = document_of(file)
        notes: list[Note] = list(NodeClaims(file, self.name).notes(document))
        run = file_config(file.path, tree)
        if run is None:
            return Reading(notes=tuple(notes), suppressions=suppressions(file))
        places = NodeClaims(file, self.name).places
        first = places.span(0, 0)
        claims = claims_of(run, scope, "", first, file.path)
        references = [Reference(path, "composed", first, scope) for path in run.files if path != file.path]
        for path in run.composition.unknown:
            message = f"{file.path} names `{path}`, which is not in the tree"
            notes.append(Note(NoteKind.MISSING, message, first))
        return Reading(claims, (), tuple(references), tuple(notes), suppressions(file))
