from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(output_dir="out", num_generations=1)
GRPOTrainer(model="gpt2", reward_funcs=len, args=args).train()
