from trl import GRPOConfig, GRPOTrainer

args = GRPOConfig(output_dir="out", per_device_train_batch_size=1, num_generations=8)
GRPOTrainer(model="gpt2", reward_funcs=len, args=args).train()
