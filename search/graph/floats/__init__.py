"""The float32 model that a file stands for: halves are widened, quantization is taken out, its scales are kept."""
