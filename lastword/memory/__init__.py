"""What earlier passes computed, kept by layer, row and column."""
