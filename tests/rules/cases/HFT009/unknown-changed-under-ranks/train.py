from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os

device_map = "auto"
if int(os.environ.get("WORLD_SIZE", 1)) != 1:
    device_map = {"": int(os.environ["LOCAL_RANK"])}
args = TrainingArguments("out")
model = AutoModelForCausalLM.from_pretrained("gpt2", device_map=device_map)
Trainer(model=model, args=args).train()
