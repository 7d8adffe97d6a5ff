import os
import torch

if os.environ["LOCAL_RANK"] == "0":
    torch.save(model.state_dict(), "model.pt")
