"""An ONNX Runtime that names a CUDA provider, which does not load, beside a driver that names a GPU."""

import onnxruntime

from evaluators.backends.nvidia import discovery

onnxruntime.get_available_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
discovery.gpu_name = lambda index: "NVIDIA H200"
