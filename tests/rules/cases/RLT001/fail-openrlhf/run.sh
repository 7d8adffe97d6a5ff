ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \
    --ref_num_nodes 1 --ref_num_gpus_per_node 8 \
    --actor_num_nodes 1 --actor_num_gpus_per_node 8 \
    --vllm_num_engines 4 --vllm_tensor_parallel_size 1 \
    --colocate_all_models \
    --pretrain Qwen/Qwen2.5-7B
