import ray

ray.init()
ray.get(task.remote())
