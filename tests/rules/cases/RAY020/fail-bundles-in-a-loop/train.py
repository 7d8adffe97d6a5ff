import ray

ray.init()
bundles = [{"CPU": 4, "GPU": 1} for _ in range(8)]
pg = ray.util.placement_group(bundles, strategy="PACK")
ray.get(pg.ready())
