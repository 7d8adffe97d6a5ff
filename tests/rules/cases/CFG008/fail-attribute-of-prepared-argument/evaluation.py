def evaluate(model):
    print(model.vocabulary)
