import ray
from ray.util.placement_group import placement_group

ray.init()
pg = placement_group(bundles_of(cluster))
ray.get(pg.ready())
