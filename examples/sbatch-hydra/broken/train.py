import hydra
import lightning as L
from omegaconf import DictConfig

from vit import ImageNet, ViT


@hydra.main(version_base="1.3", config_path="conf", config_name="config")
def main(config: DictConfig) -> None:
    L.seed_everything(config.seed)
    trainer = L.Trainer(
        accelerator=config.trainer.accelerator,
        strategy=config.trainer.strategy,
        devices=config.trainer.devices,
        num_nodes=config.trainer.num_nodes,
        max_epochs=config.trainer.max_epochs,
        precision=config.trainer.precision,
    )
    trainer.fit(ViT(config.model), ImageNet(config.data))


if __name__ == "__main__":
    main()
