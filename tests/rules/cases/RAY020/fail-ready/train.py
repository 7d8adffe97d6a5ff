import ray

ray.init()
pg = ray.util.placement_group([{"CPU": 2}], strategy="SPREAD")
ray.get(pg.ready())
