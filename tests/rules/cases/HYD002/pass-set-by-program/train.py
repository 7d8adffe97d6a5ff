import hydra
from omegaconf import open_dict


@hydra.main(version_base=None, config_path="conf", config_name="train")
def main(cfg):
    with open_dict(cfg):
        cfg.data.vocab_size = 100
        cfg.num_classes = 10
        cfg["head_count"] = 4
    print(cfg)


if __name__ == "__main__":
    main()
