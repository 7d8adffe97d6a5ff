import pytorch_lightning as pl
import torch


class Model(pl.LightningModule):
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


trainer = pl.Trainer(accelerator="gpu", devices=8, strategy="fsdp_native")
trainer.fit(Model())
