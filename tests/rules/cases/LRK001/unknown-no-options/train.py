import argparse
parser = argparse.ArgumentParser()
options = parser.parse_args()
