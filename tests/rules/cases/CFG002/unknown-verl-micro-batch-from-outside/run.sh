#!/bin/bash
pip install verl==0.9.1
python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  data.train_batch_size=256 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.rollout.name=vllm \
  trainer.n_gpus_per_node=8 trainer.nnodes=1 "$@"
