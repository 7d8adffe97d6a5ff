import deepspeed

engine, optimizer, _, _ = deepspeed.initialize(model=model, config="ds.json")
for step, batch in enumerate(loader):
    engine.backward(engine(batch))
    if engine.global_rank == 0:
        engine.save_checkpoint(path)
