"""Builds the API server's validation of custom resources from its own code, and asks it about many manifests."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
SOURCES = Path(os.environ["ORACLE_SOURCES"])
#: As in `tools/tables/custom_resources.py`, with the sources.
REWRITTEN = ("JobSet", "LeaderWorkerSet", "TrainJob", "Job")
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
FILLED = re.compile(r"failurePolicy\.rules\[\d+\]\.name$")


def main():
    source, target = map(Path, sys.argv[1:3])
    cases = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    folders = sorted((SOURCES / "crds").iterdir())
    newest = {path.name.rpartition("-v")[0]: path for path in sorted(folders, key=release)}
    texts = {case["id"]: case["files"] for case in cases}
    rows = "".join(json.dumps({"id": case["id"], "files": case["files"]}) + "\n" for case in cases)
    done = subprocess.run([str(program()), *map(str, newest.values())], input=rows, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    with target.open("w", encoding="utf-8") as out:
        for line in done.stdout.splitlines():
            verdict = json.loads(line)
            # The code adds one fault without a path for a value that is neither of two types.
            faults = [fault for fault in verdict["faults"] if "(anyOf)" not in fault["message"]]
            halves = {fault["path"] for fault in faults if 'integer,string: "number"' in fault["message"]}
            text = "".join(texts[verdict["id"]].values())
            sure = [fault for fault in faults if not may_be_rewritten(fault, text, halves)]
            message, here = (first_line(found) for found in (sure, faults))
            out.write(json.dumps({"id": verdict["id"], "message": message, "here": here}) + "\n")


def first_line(faults):
    """Return the first line of the first fault; empty if there are none."""
    return faults[0]["message"].splitlines()[0][:300] if faults else ""


def may_be_rewritten(fault, text, halves):
    """Return whether a mutating webhook, which runs before validation, may make the object valid.

    `halves` are the paths of quantities such as 0.5. Determined from the webhooks' code; they are not run. Such a
    verdict is recorded as one that depends on the cluster.
    """
    # A boolean of the wrong type is shown as an empty text, too.
    empty = re.search(r'Invalid value: ""(?!.*must be of type)', fault["message"]) and fault["path"] != "<nil>"
    rewritten = QUEUE_LABEL in text or any(f"kind: {kind}\n" in text for kind in REWRITTEN)
    if rewritten and (empty or any(path in fault["message"] for path in halves)):
        return True
    return bool(FILLED.search(fault["path"])) and "kind: JobSet\n" in text and fault["kind"] == "FieldValueRequired"


def release(path):
    """Return a release as numbers."""
    return tuple(int(part) for part in path.name.rpartition("-v")[2].split("."))


def program():
    """Return the path of the program, which is rebuilt if its source is newer."""
    text = FOLDER / "kubernetes_validator.go"
    checkout = SOURCES / "crd-schema-checker"
    built = SOURCES / "kubernetes_validator"
    if not built.exists() or built.stat().st_mtime < text.stat().st_mtime:
        (checkout / "cmd" / "oracle").mkdir(parents=True, exist_ok=True)
        shutil.copy(text, checkout / "cmd" / "oracle" / "main.go")
        go = Path(sys.executable).with_name("go")
        environment = {**os.environ, "GOFLAGS": "-mod=vendor", "GOCACHE": str(SOURCES / "go-cache")}
        subprocess.run([str(go), "build", "-o", str(built), "./cmd/oracle"], cwd=checkout, env=environment, check=True)
    return built


if __name__ == "__main__":
    main()
