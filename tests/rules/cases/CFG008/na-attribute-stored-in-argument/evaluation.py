def evaluate(model):
    model.best = 0
    print(model.best)
