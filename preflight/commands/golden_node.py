"""The properties of a node in a saved recording, as requirements for other nodes."""

from __future__ import annotations

from pathlib import Path

from preflight._util import regular_file
from preflight._util.spans import Span
from preflight._util.usage_error import UsageError
from preflight.model.job import Claim
from preflight.model.recording import PROPERTIES, Facts, NodeRecord, Recording, Requirement, requirement_claim
from preflight.plugins import registry


def profile_of(text: str) -> tuple[Claim, ...] | None:
    """The requirements of `FILE` or `FILE:NODE`, a recording that `--save` wrote; None if `text` names no file.

    Raises:
        UsageError: the file is not a recording, or the node is not in it.
    """
    file, colon, node = text, "", ""
    if not Path(file).is_file():
        file, colon, node = text.rpartition(":")
        if not colon or not Path(file).is_file():
            if "/" in text or text.endswith((".json", ".gz")):
                raise UsageError(f"--golden {text}: no such file")
            return None
    recording = _load(Path(file))
    record = _node(recording, file, node)
    facts = Facts(recording.facts, recording.events)
    values: dict[str, str] = {}
    readers, _ = registry.property_readers()
    for read in readers:
        values.update(read(record, facts))
    if "gpus" not in values:
        raise UsageError(
            f"--golden {file}: the recording does not say how many GPUs {record.node.name} has; make one with"
            " `preflight nodes --save FILE`, on a node whose GPU driver answers"
        )
    place = Span(file, 1, 1, 1, 1, "")
    return tuple(
        requirement_claim(Requirement(name, "==", value), place) for name, value in values.items() if name in PROPERTIES
    )


def _load(path: Path) -> Recording:
    from preflight.model.recording_io import MAX_BYTES, load

    try:
        return load(regular_file.read(path, MAX_BYTES))
    except OSError as error:
        raise UsageError(f"--golden {path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(
            f"--golden {path}: not a recording that can be read: {error}; `preflight nodes --save FILE` writes one"
        ) from None


def _node(recording: Recording, file: str, name: str) -> NodeRecord:
    answered = {record.node.name: record for record in recording.nodes if not record.problem}
    if name in answered:
        return answered[name]
    listed = ", ".join(sorted(answered)[:8]) or "none"
    if name:
        raise UsageError(f"--golden {file}:{name}: no node of this name answered in the recording; answered: {listed}")
    if len(answered) != 1:
        raise UsageError(f"--golden {file}: the recording has {len(answered)} nodes ({listed}); use {file}:NODE")
    return next(iter(answered.values()))
