"""Models: tokens in, logits of selected columns out."""
