from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

training_args = GRPOConfig(
    output_dir="out",
    per_device_train_batch_size=4,
    num_generations=16,
)
data = load_dataset("json", data_files="train.jsonl")["train"]
trainer = GRPOTrainer(model="Qwen/Qwen2.5-0.5B", args=training_args, train_dataset=data)
trainer.train()
