from transformers import Trainer, TrainingArguments

args = TrainingArguments(
    output_dir="out",
    evaluation_strategy="steps",
)
Trainer(model=model, args=args, train_dataset=data).train()
