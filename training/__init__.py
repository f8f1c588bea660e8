"""How the embedded models are made: corpus, tokenizer, training, export, check. No part of the wheel."""
