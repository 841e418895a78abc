"""An ONNX Runtime that names a CUDA provider, which does not load: sessions that ask for it run on the processor."""

import onnxruntime

onnxruntime.get_available_providers = lambda: ["CUDAExecutionProvider", "CPUExecutionProvider"]
