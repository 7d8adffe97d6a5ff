"""What Acme's cluster asks of training jobs. Naming things here costs nothing; they are imported when needed."""

RULES = ("acme_preflight.caches:cache_on_home_folder",)
#: We have no checks of our own, and show something of what those of others observed.
CHECKS = ()
EXHIBITS = ("acme_preflight.racks:racks",)
REPORTERS = ("acme_preflight.csv:CsvReporter",)
#: What the areas of our rules are about, for the last lines of a report.
AREAS = {"ACM": "Acme's cluster"}
