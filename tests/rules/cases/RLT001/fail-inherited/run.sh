python examples/run_grpo.py --config configs/large.yaml cluster.num_nodes=3
