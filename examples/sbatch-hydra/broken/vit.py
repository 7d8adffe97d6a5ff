import lightning as L
import torch


class ViT(L.LightningModule):
    def __init__(self, config):
        super().__init__()
        self.lr = config.lr
        self.net = torch.nn.Linear(config.width, 1000)

    def training_step(self, batch, index):
        x, y = batch
        return torch.nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class ImageNet(L.LightningDataModule):
    def __init__(self, config):
        super().__init__()
        self.config = config
