from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

args = TrainingArguments("out", deepspeed="ds.json")
model = AutoModelForCausalLM.from_pretrained("gpt2", device_map={"": 0})
Trainer(model=model, args=args).train()
