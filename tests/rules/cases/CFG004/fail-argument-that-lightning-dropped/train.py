import lightning as L

from project import Model, data

trainer = L.Trainer(
    accelerator="gpu",
    gpus=8,
    max_epochs=3,
)
trainer.fit(Model(), data())
