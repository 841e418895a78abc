"""Samplers side by side on real searches: ONNX Runtime on one core of the CPU."""
