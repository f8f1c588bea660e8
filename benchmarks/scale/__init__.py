"""Simulation of a thousand replicas from kept records: the gain from predicted lengths, and its limits."""
