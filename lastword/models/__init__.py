"""Models: token ids in, logits of selected columns out."""
