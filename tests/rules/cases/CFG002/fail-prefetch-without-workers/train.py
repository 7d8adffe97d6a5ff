from transformers import Trainer, TrainingArguments

args = TrainingArguments(
    output_dir="out",
    dataloader_prefetch_factor=2,
)
Trainer(model=model, args=args, train_dataset=data).train()
