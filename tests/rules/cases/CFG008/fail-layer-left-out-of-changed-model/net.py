import torch.nn as nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 2)
        self.spare = nn.Linear(2, 2)

    def forward(self, x):
        return self.body(x)
