"""The making of the embedded models: corpus, tokenizer, training, export, check. Not part of the wheel."""
