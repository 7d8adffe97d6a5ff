python3 -m verl.trainer.main_ppo \
    data.train_batch_size=512 \
    actor_rollout_ref.actor.ppo_mini_batch_size=128 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=24 \
    actor_rollout_ref.rollout.n=4 \
    trainer.n_gpus_per_node=8 trainer.nnodes=1
