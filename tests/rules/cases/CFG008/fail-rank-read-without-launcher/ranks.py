import os


def start():
    return int(os.environ["RANK"])
