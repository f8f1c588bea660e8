"""Triton kernels and their plain PyTorch equivalents."""
