"""Kernels for GPUs, in Triton: each has its twin in torch operations, and runs without a GPU in Triton's interpreter."""
