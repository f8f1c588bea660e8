"""Length distributions and their derivation from end-token probabilities."""
