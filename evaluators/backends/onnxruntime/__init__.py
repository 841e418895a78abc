"""ONNX Runtime as a backend: on the CPU, and with CUDA if onnxruntime-gpu is installed."""
