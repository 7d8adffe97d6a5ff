from accelerate import Accelerator
from transformers import AutoModelForCausalLM, BitsAndBytesConfig

accelerator = Accelerator()
config = BitsAndBytesConfig(load_in_4bit=True)
model = accelerator.prepare(AutoModelForCausalLM.from_pretrained("gpt2", quantization_config=config))
