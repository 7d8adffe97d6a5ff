import argparse


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config-file")
    print(parser.parse_args())


if __name__ == "__main__":
    main()
