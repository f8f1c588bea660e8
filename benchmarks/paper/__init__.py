"""Tables and figures of the survival paper from records: `python -m benchmarks.paper --records DIR`."""
