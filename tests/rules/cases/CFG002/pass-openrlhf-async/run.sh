#!/bin/bash
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \
  --ref.num_nodes 1 --ref.num_gpus_per_node 8 --actor.num_nodes 1 --actor.num_gpus_per_node 8 \
  --vllm.num_engines 8 --vllm.tensor_parallel_size 1 --train.colocate_actor_ref \
  --train.async_enable --train.partial_rollout_enable --train.agent_func_path agent.py \
  --actor.model_name_or_path Qwen/Qwen3-4B \
  --rollout.n_samples 8 --rollout.batch_size 128 --train.batch_size 1024 \
  --algo.advantage.estimator group_norm --algo.dynamic_filtering_enable --algo.dynamic_filtering_range 0.0 1.0 \
  --algo.kl.use_loss --algo.kl.estimator k2 --ds.packing_samples --ds.zero_stage 3 --ds.param_dtype bf16
