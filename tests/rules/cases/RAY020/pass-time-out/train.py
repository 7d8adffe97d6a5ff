import ray
from ray.util.placement_group import placement_group

ray.init()
pg = placement_group([{"CPU": 2, "GPU": 1}] * 4)
ray.get(pg.ready(), timeout=600)
