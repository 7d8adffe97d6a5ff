#!/bin/bash
pip install verl==0.9.1
python3 -m verl.trainer.main_ppo \
  algorithm.adv_estimator=grpo \
  +actor_rollout_ref.actor.own_option=1 \
  trainer.num_nodes=2 \
  actor_rollout_ref.rollout.name=vllm
