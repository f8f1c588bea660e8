"""Hostile clients of the server, and what a healthy client notices of them: `python -m benchmarks.hostile`."""
