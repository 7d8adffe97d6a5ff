#!/bin/bash
pip install openrlhf==0.11.2
python3 -m openrlhf.cli.train_ppo_ray \
  --actor.num_nodes 1 \
  --vllm_num_engines 4 \
  --reward.model_name_or_path OpenRLHF/Llama-3-8b-rm-mixture
