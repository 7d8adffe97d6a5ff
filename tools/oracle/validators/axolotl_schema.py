"""Prints the values that axolotl's models accept for each key: kind, bounds and choices."""

import json
import sys

from axolotl.utils.schemas.config import AxolotlInputConfig
from model_rows import rows

#: Sections whose keys the framework looks at by itself, before its model does or in another form.
OPEN = ("datasets", "test_datasets", "pretraining_dataset")
#: Validators convert these from text before the model sees them.
CONVERTED = {"learning_rate": {"kind": "float"}}


def main():
    made = [row for row in rows("", AxolotlInputConfig) if row["key"].partition(".")[0] not in OPEN]
    for row in made:
        row.update(CONVERTED.get(row["key"], {}))
    json.dump(made, sys.stdout)


main()
