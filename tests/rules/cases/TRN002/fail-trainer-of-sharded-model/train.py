import transformers
from transformers import Trainer, TrainingArguments, HfArgumentParser, AutoModelForCausalLM
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained("gpt2")
from data import train_set
trainer = Trainer(model=model, args=args, train_dataset=train_set)
trainer.train()
if trainer.is_world_process_zero():
    trainer.save_model(args.output_dir)
