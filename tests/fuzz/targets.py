"""The table of all targets, by name."""

from __future__ import annotations

from tests.fuzz import comments, documents, editors, jobs, peers, readers, reports, submissions
from tests.fuzz.target import Target

TARGETS: dict[str, Target] = {
    target.name: target
    for module in (jobs, readers, peers, editors, documents, reports, comments, submissions)
    for target in module.targets()
}
