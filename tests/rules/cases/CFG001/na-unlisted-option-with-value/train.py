from transformers import HfArgumentParser, Trainer, TrainingArguments


def main():
    parser = HfArgumentParser(TrainingArguments)
    (args,) = parser.parse_args_into_dataclasses()
    Trainer(args=args).train()


main()
