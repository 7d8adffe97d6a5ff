#!/bin/bash
python3 -m openrlhf.cli.train_ppo_ray \
  --actor.num_nodes 1 --actor.num_gpus_per_node 8 \
  --vllm.num_engines 4 --vllm.tensor_parallel_size 2 \
  --actor.model_name_or_path meta-llama/Llama-3.1-8B \
  --reward.model_name_or_path OpenRLHF/Llama-3-8b-rm-mixture \
  --rollout.n_samples_per_prompt 1 \
  --algo.advantage.estimator rloo
