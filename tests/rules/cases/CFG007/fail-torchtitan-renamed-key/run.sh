pip install -r requirements.txt
torchrun --standalone --nproc_per_node=8 -m torchtitan.train --job.config_file train.toml
