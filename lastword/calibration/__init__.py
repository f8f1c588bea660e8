"""Calibration: how a model's observed answer lengths compare with its predictions."""
