from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

training_args = SFTConfig(
    output_dir="out",
    per_device_train_batch_size=4,
    max_seq_length=2048,
)
data = load_dataset("json", data_files="train.jsonl")["train"]
trainer = SFTTrainer(model="Qwen/Qwen2.5-0.5B", args=training_args, train_dataset=data)
trainer.train()
