"""How good an engine is: latency, loss against FP32 with its interval, and how much data tells how small a loss."""
