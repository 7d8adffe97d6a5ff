from accelerate import Accelerator

accelerator = Accelerator()
stopper = EarlyStopping(patience=3)
for epoch in range(10):
    for batch in loader:
        loss = model(batch)
        accelerator.backward(loss)
    mean = accelerator.gather(loss).mean().item()
    stopper(mean)
    if stopper.early_stop:
        break
