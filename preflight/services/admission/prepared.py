"""Imported by the process that all judging processes are forked from, so that they start immediately.

Importing this module judges a job, which loads the rules and readers for every fork.
"""

from __future__ import annotations

import gc
import tempfile

from preflight.services.admission import judgement
from preflight.services.admission.judgement import Policy

_JOB = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "prepared"},
    "spec": {"template": {"spec": {"containers": [{"name": "a", "image": "a", "command": ["torchrun", "train.py"]}]}}},
}

with tempfile.TemporaryDirectory(prefix="preflight-") as _folder:
    judgement.judge(_JOB, "", Policy(), _folder, None)
gc.freeze()
