import os
from transformers import Trainer, TrainingArguments

args = TrainingArguments(
    output_dir="out",
    dataloader_prefetch_factor=2,
    dataloader_num_workers=int(os.environ["WORKERS"]),
)
Trainer(model=model, args=args, train_dataset=data).train()
