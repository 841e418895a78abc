"""NVIDIA GPUs, independent of a backend: selection, native precisions and state."""
