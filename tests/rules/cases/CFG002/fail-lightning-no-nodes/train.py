from lightning.pytorch import Trainer

from project import Model, data

trainer = Trainer(devices=8, num_nodes=0, strategy="ddp")
trainer.fit(Model(), data())
