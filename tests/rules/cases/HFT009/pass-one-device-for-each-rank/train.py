from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
import os
local_rank = int(os.environ["LOCAL_RANK"])
args = TrainingArguments("out")
model = AutoModelForCausalLM.from_pretrained("gpt2", device_map={"": local_rank})
Trainer(model=model, args=args).train()
