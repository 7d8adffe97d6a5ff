from transformers import TrainingArguments

args = TrainingArguments(output_dir="o", load_best_model_at_end=True, save_strategy="epoch", eval_strategy="epoch")
