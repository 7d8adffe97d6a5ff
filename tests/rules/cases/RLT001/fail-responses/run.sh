ray job submit --address=http://127.0.0.1:8265 -- python3 -m verl.trainer.main_ppo \
    data.train_batch_size=100 \
    actor_rollout_ref.actor.ppo_mini_batch_size=50 \
    actor_rollout_ref.rollout.n=1 \
    trainer.n_gpus_per_node=8 trainer.nnodes=1
