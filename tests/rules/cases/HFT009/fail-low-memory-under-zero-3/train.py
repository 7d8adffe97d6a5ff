from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

args = TrainingArguments("out", deepspeed="ds.json")
model = AutoModelForCausalLM.from_pretrained("gpt2", low_cpu_mem_usage=True)
Trainer(model=model, args=args).train()
