"""What passes, answers and batches cost on this machine: real shapes, random weights, public calls only."""
