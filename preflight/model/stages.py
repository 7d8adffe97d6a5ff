"""The stages of a run, in their order."""

from __future__ import annotations

#: Stages of `check` in order; a check sees the facts of its own and all earlier stages.
STAGES = ("node", "link", "smoke")


#: The command that only trains. Its earlier requests to nodes are not judged; without the training they have no
#: meaning.
SMOKE = "smoke"

#: The command that examines nodes without a job.
NODES = "nodes"
