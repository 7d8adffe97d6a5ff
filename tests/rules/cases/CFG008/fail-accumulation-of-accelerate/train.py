from accelerate import Accelerator
from model import batches, build

accelerator = Accelerator(gradient_accumulation_steps=4)
model = accelerator.prepare(build())
for batch in batches():
    with accelerator.accumulate(model):
        accelerator.backward(model(batch).sum())
