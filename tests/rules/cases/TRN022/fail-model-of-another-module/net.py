from torchvision import models

def build(local):
    return models.resnet50().cuda(local)
