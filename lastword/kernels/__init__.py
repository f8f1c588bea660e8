"""What a pass computes beside its products: Triton kernels, and the plain twins they are held to."""
