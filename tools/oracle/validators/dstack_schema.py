"""Prints the values that dstack's models accept for each key of a task: kind, bounds and choices."""

import json
import sys

from dstack._internal.core.models.configurations import TaskConfiguration
from dstack._internal.utils.tags import TAG_VALUE_PATTERN
from model_rows import rows

#: Parsed from texts and numbers before their models see them.
PARSED = (
    *("resources.cpu", "resources.gpu", "resources.disk", "resources.memory", "resources.shm_size"),
    *("max_duration", "stop_duration", "idle_duration", "python", "retry.duration"),
)
#: Sections whose keys the user chooses, or that may also be written in another form.
OPEN = ("env", "tags", "volumes", "groups")


def main():
    made = []
    for row in rows("", TaskConfiguration):
        key = row["key"]
        parsed = next((name for name in PARSED if f"{key}.".startswith(f"{name}.")), None)
        if parsed is not None or key.partition(".")[0] in OPEN:
            row = {name: value for name, value in row.items() if name in ("key", "nullable", "closed")}
            row["kind"] = "any"
        if key.endswith((".min", ".max")):
            continue
        if row["kind"] == "str" and "choices" not in row:
            # Its models make texts of numbers.
            row = {**row, "kind": "json", "types": ["string", "number", "integer"]}
        made.append(row)
    made.append({"key": "env.*", "kind": "json", "types": ["string", "number", "integer"]})
    made.append({"key": "tags.*", "kind": "json", "types": ["string"], "pattern": TAG_VALUE_PATTERN.pattern})
    json.dump([row for row in made if row["key"] != "env.root"], sys.stdout)


main()
