def train():
    yield 0, 0
def test():
    yield 0, 0
