"""Ranges of tensors from data, their arithmetic, and TensorRT's calibration cache."""
