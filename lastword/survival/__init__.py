"""Length distributions, and how to read them from end-token probabilities."""
