from accelerate import Accelerator

accelerator = Accelerator()
model, loader = accelerator.prepare(model, loader)
best = 0.1
for batch in loader:
    optimizer.zero_grad()
    loss = model(batch)
    accelerator.backward(loss)
    if loss.item() < best:
        break
