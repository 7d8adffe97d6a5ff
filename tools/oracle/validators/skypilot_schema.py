"""Prints the values that SkyPilot's JSON Schema of a task accepts for each key: types, bounds, choices and patterns."""

import json
import os
import sys

os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"

from sky.utils import schemas

#: Sections whose keys are names of the user's.
OPEN = ("envs", "secrets", "file_mounts", "file_mounts_mapping", "volumes", "inputs", "outputs", "service", "pool")
DEPTH = 4


def options(schema):
    """Return the alternatives of a schema, each without alternatives of its own."""
    for name in ("anyOf", "oneOf"):
        if name in schema:
            for inner in schema[name]:
                yield from options(inner)
            return
    yield schema


def rows(key, schema, closed_above):
    """Yield the row of a key, and those of its nested keys."""
    found = list(options(schema))
    types, patterns, row = [], [], {"key": key, "kind": "json"}
    for one in found:
        given = one.get("type", [])
        types.extend(given if isinstance(given, list) else [given])
        words = one.get("enum") or one.get("case_insensitive_enum")
        if words:
            row.setdefault("choices", []).extend(word for word in words if word is not None)
            types.extend(["string"] if "type" not in one else [])
        if "string" in given or given == "string":
            patterns.append(one.get("pattern", ""))
        if given != "string":
            for theirs, ours in (("minimum", "minimum"), ("exclusiveMinimum", "above"), ("maximum", "maximum")):
                if theirs in one:
                    row[ours] = one[theirs]
    if any(one.get("type") == "string" and not (one.get("enum") or one.get("case_insensitive_enum")) for one in found):
        row.pop("choices", None)
    # Without a type in one of them, any value may fit.
    if all("type" in one or "enum" in one or "case_insensitive_enum" in one for one in found):
        row["types"] = [*dict.fromkeys("number" if name == "number" else name for name in types)]
    if patterns and all(patterns):
        row["pattern"] = "|".join(f"(?:{pattern})" for pattern in patterns) if len(patterns) > 1 else patterns[0]
    row["nullable"] = "null" in types or closed_above == "top"
    others = [one["additionalProperties"] for one in found if isinstance(one.get("additionalProperties"), dict)]
    if others and key.partition(".")[0] not in OPEN:
        yield from rows(f"{key}.*", others[0], "")
    objects = [one for one in found if one.get("type") == "object"]
    if len(objects) == 1:
        row["closed"] = objects[0].get("additionalProperties") is False and "patternProperties" not in objects[0]
    yield row
    if key.count(".") >= DEPTH or key in OPEN:
        return
    for one in objects if len(objects) == 1 else ():
        for name, inner in one.get("properties", {}).items():
            yield from rows(f"{key}.{name}", inner, "")
    for one in found:
        items = one.get("items")
        if isinstance(items, dict) and items.get("type") == "object":
            yield {"key": f"{key}.item", "kind": "", "closed": items.get("additionalProperties") is False}
            for name, inner in items.get("properties", {}).items():
                yield from rows(f"{key}.item.{name}", inner, "")


made = [row for name, inner in schemas.get_task_schema()["properties"].items() for row in rows(name, inner, "top")]
# The top of a task and of its resources may be null; the resources have a schema of their own.
made = [row for row in made if row["key"] != "resources"]
for name, inner in {"resources": schemas.get_resources_schema()}.items():
    made += ({**row, "nullable": True} if row["key"].count(".") < 2 else row for row in rows(name, inner, ""))
made += rows("file_mounts.*", schemas.get_storage_schema(), "")
for row in made:
    if row["key"] == "file_mounts.*":
        row["types"] = ["string", "object"]
    if row["key"].startswith("file_mounts.*.") and row["key"].count(".") == 2:
        # The validation passes over keys of the top that are null.
        row["nullable"] = True
    if row["key"].endswith(".accelerators"):
        row["alias"] = row["key"].replace(".accelerators", ".gpus")
    if row["key"].endswith(".accelerators.*"):
        # Checked after the schema, unless the items of any_of or ordered replace it.
        row["above"] = 0
        if row["key"] == "resources.accelerators.*":
            row["when"] = "resources.any_of.item0.accelerators is None and resources.ordered.item0.accelerators is None"
    row["types"] = [name for name in row.get("types", ()) if name != "null"]
# Names of the user's: only null is refused, and only where no option of the line may set it.
made.append({"key": "envs.*", "kind": "json", "when": "job.submitted_task is not None"})
json.dump([row for row in made if row["key"].rpartition(".")[2][:1] != "_"], sys.stdout)
