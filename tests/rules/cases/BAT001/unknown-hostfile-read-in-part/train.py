import deepspeed

engine, _, _, _ = deepspeed.initialize(args=None, model=None)
