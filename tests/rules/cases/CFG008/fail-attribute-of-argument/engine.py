def evaluate(model, batches):
    return [model.generate(batch) for batch in batches]
