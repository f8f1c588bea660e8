"""Forward passes, answers and batches at real model shapes with random weights, through public calls only."""
