from paddlenlp.trainer import PdArgumentParser, TrainingArguments

args = PdArgumentParser(TrainingArguments).parse_args_into_dataclasses()
