"""Requirements of Acme's cluster for training jobs. Items are listed by name, so that each is imported only when
needed.
"""

from preflight.plugin import Pack

RULES = Pack(items=("acme_preflight.caches:cache_on_home_folder",), areas={"ACM": "Acme's cluster"})
#: A chart of facts that other packs' checks observed; this pack has no checks of its own.
CHECKS = Pack(charts=("acme_preflight.racks:racks",))
REPORTERS = Pack(items=("acme_preflight.csv:CsvReporter",))
