"""ONNX Runtime as a backend: the CPU, and CUDA where onnxruntime-gpu is installed."""
