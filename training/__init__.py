"""Training of the embedded models: corpus, tokenizer, training, export and check. Not part of the wheel."""
