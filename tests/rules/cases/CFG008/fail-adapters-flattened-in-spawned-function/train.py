import torch
import torch.multiprocessing as mp
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from worker import work

base = AutoModelForCausalLM.from_pretrained("base", torch_dtype=torch.bfloat16)
adapted = get_peft_model(base, LoraConfig(r=8))
if __name__ == "__main__":
    mp.spawn(work, nprocs=2, args=(2, adapted))
