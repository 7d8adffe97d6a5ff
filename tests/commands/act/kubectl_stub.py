"""A STUB of kubectl: the commands that preflight runs on nodes, over a file with the nodes as the API server has them.

It refuses what kubectl refuses: an unknown node, a taint or annotation that is not there, an unknown option.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(arguments: list[str], file: Path) -> int:
    """Run one command."""
    nodes = json.loads(file.read_text())
    by_name = {item["metadata"]["name"]: item for item in nodes["items"]}
    match arguments:
        case ["get", "nodes", "--output=json"]:
            print(json.dumps(nodes))
            return 0
        case ["get" | "annotate" | "taint" | "patch", "node", name, *_] if name not in by_name:
            print(f'Error from server (NotFound): nodes "{name}" not found', file=sys.stderr)
            return 1
        case ["get", "node", name, "--output=json"]:
            print(json.dumps(by_name[name]))
            return 0
        case ["annotate", "node", name, "--overwrite", text]:
            key, _, value = text.partition("=")
            by_name[name]["metadata"].setdefault("annotations", {})[key] = value
        case ["annotate", "node", name, text] if text.endswith("-"):
            by_name[name]["metadata"].setdefault("annotations", {}).pop(text[:-1], None)
        case ["taint", "node", name, "--overwrite", text]:
            key, value, effect = text.replace(":", "=").split("=")
            taints = by_name[name]["spec"].setdefault("taints", [])
            taints.append({"key": key, "value": value, "effect": effect})
        case ["taint", "node", name, text] if text.endswith("-"):
            key, _, effect = text[:-1].partition(":")
            kept = [t for t in by_name[name]["spec"].get("taints", []) if (t["key"], t["effect"]) != (key, effect)]
            if len(kept) == len(by_name[name]["spec"].get("taints", [])):
                print(f'error: taint "{text[:-1]}" not found', file=sys.stderr)
                return 1
            by_name[name]["spec"]["taints"] = kept
        case ["patch", "node", name, "--subresource=status", "--type=strategic", patch]:
            new = json.loads(patch.removeprefix("--patch="))["status"]["conditions"]
            # The API server merges conditions by their type.
            conditions = {item["type"]: item for item in by_name[name]["status"].get("conditions", [])}
            conditions.update({item["type"]: item for item in new})
            by_name[name]["status"]["conditions"] = list(conditions.values())
        case _:
            print(f"error: unknown command {arguments}", file=sys.stderr)
            return 1
    file.write_text(json.dumps(nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], Path(sys.argv[1])))
