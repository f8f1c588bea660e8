"""Forward passes, answers and batches at the shapes of real models with random weights, through the public API."""
