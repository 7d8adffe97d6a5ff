set -x
NUM_GPUS=8
python3 -m verl.trainer.main_ppo \
    data.train_batch_size=1024 \
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=2 \
    actor_rollout_ref.rollout.n=5 \
    trainer.n_gpus_per_node=$NUM_GPUS trainer.nnodes=2
