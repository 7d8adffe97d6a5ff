python3 -m verl.trainer.main_ppo \
    data.train_batch_size=1024 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=3 \
    trainer.n_gpus_per_node=8 trainer.nnodes=$WORKER_NUM
