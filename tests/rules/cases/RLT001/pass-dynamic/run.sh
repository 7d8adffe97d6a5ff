python3 -m verl.trainer.main_ppo \
    data.train_batch_size=100 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_mini_batch_size=50 \
    trainer.n_gpus_per_node=8 trainer.nnodes=1
