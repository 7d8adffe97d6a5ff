import torch, torch.nn.functional as F
import torch.multiprocessing as mp
from net import Net
from data import loader
def train(rank, model):
    torch.manual_seed(rank)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for e in range(10):
        for x, y in loader(rank):
            opt.zero_grad(); F.nll_loss(model(x), y).backward(); opt.step()
if __name__ == "__main__":
    model = Net()
    model.share_memory()
    ps = []
    for rank in range(8):
        p = mp.Process(target=train, args=(rank, model))
        p.start(); ps.append(p)
    for p in ps: p.join()
    torch.save(model.state_dict(), "m.pt")
