"""Folders that libraries write to by default: temporary files, the home directory, caches of compilers."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Tuple

from preflight.agent.process import read_text
from preflight_checks.probes.folders import FolderState, folder_state

#: Where each library looks, in its order: variables, with the suffix that it appends to their value, then a default.
#: Sources: Python's tempfile; triton/knobs.py (3.4); torch/utils/cpp_extension.py and torch/_inductor/runtime/
#: cache_dir_utils.py (2.8); huggingface_hub/constants.py (0.34).
PLACES = {
    "temporary": ([("TMPDIR", ""), ("TEMP", ""), ("TMP", "")], "/tmp"),
    "home": ([("HOME", "")], ""),
    "triton": ([("TRITON_CACHE_DIR", ""), ("TRITON_HOME", ".triton/cache")], "~/.triton/cache"),
    "extensions": ([("TORCH_EXTENSIONS_DIR", ""), ("XDG_CACHE_HOME", "torch_extensions")], "~/.cache/torch_extensions"),
    "hub": (
        [
            ("HF_HUB_CACHE", ""),
            ("HUGGINGFACE_HUB_CACHE", ""),
            ("HF_HOME", "hub"),
            ("XDG_CACHE_HOME", "huggingface/hub"),
        ],
        "~/.cache/huggingface/hub",
    ),
}  # type: Dict[str, Tuple[List[Tuple[str, str]], str]]
#: The fallbacks of Python when the first is unusable (tempfile._candidate_tempdir_list); the working directory comes
#: last.
OTHER_TEMPORARY = ("/tmp", "/var/tmp", "/usr/tmp")
#: The space that Python needs to test a temporary folder, with a little more for later use.
MIN_FREE_BYTES = 1 << 16
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = ("1", "on", "yes", "true")


@dataclass(frozen=True)
class Scratch:
    """One such folder. `variable` is the variable that selected it, empty for a default; `instead` is the next usable
    one of those that Python tries for temporary files, empty if there is none.
    """

    what: str
    variable: str
    folder: FolderState
    instead: str = ""


def scratch(params: Dict[str, Any]) -> Scratch:
    """The folder of this kind (`params["what"]`, a key of PLACES) for a process of the job."""
    what = str(params["what"])
    variable, path = chosen(what, dict(os.environ))
    state = folder_state({"path": path or "/nonexistent"})
    instead = ""
    if what == "temporary" and not usable(state):
        candidates = [name for name in (*OTHER_TEMPORARY, os.getcwd()) if name != state.resolved]
        instead = next((name for name in candidates if usable(folder_state({"path": name}))), "")
    return Scratch(what, variable, state, instead)


def chosen(what: str, environment: Dict[str, str]) -> Tuple[str, str]:
    """The variable that decides, and the folder."""
    variables, default = PLACES[what]
    for name, rest in variables:
        value = environment.get(name, "")
        if value:
            return name, os.path.join(value, rest) if rest else value
    return "", os.path.expanduser(default)


def usable(state: FolderState) -> bool:
    """Whether a temporary file can be made there; the folder must exist, because nothing creates it."""
    if not state.exists or state.problem or not state.writable or state.read_only or state.inodes_free == 0:
        return False
    return not state.total_bytes or (state.free_bytes or 0) >= MIN_FREE_BYTES


@dataclass(frozen=True)
class HubModel:
    """A model of Hugging Face's hub, as cached on this node.

    `offline`: downloads are disabled by `variable`. `revisions` are the existing snapshots. `local`: there is a folder
    of that name, which is used instead.
    """

    model: str
    folder: str
    offline: bool
    variable: str = ""
    revisions: List[str] = field(default_factory=list)
    main: str = ""
    local: bool = False
    problem: str = ""


def hub_model(params: Dict[str, Any]) -> HubModel:
    """Look up `params["model"]` (`owner/name`) in the cache of the job's processes."""
    model = str(params["model"])
    set_by = next((name for name in _OFFLINE if os.environ.get(name, "").lower() in _TRUE), "")
    folder = os.path.join(chosen("hub", dict(os.environ))[1], "models--" + model.replace("/", "--"))
    try:
        revisions = sorted(_names(os.path.join(folder, "snapshots")) or [])
    except OSError as error:
        return HubModel(model, folder, bool(set_by), set_by, problem=error.strerror or str(error))
    main = read_text(os.path.join(folder, "refs", "main"), 200)
    return HubModel(model, folder, bool(set_by), set_by, revisions, main, os.path.isdir(model))


def _names(folder: str) -> Optional[List[str]]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
