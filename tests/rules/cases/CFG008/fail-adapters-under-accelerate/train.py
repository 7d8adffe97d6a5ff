from accelerate import Accelerator
from model import build
from peft import LoraConfig, get_peft_model

accelerator = Accelerator()
model = accelerator.prepare(get_peft_model(build(), LoraConfig()))
