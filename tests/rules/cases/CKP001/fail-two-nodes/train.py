import os
import torch

def is_main():
    return int(os.environ["LOCAL_RANK"]) == 0

def main():
    train()
    if is_main():
        torch.save(state, "checkpoint.pt")

if __name__ == "__main__":
    main()
