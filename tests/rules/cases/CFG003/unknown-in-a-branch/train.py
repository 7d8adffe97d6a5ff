import os
from transformers import Trainer, TrainingArguments

if os.environ.get("FAST"):
    args = TrainingArguments(output_dir="out", save_stepss=100)
Trainer(model=model, args=args, train_dataset=data).train()
