"""Steps that change constants which only quantized ops use: ranges, biases and scales of channels, rounded weights.

They fit to one half of the calibration samples, and keep what helps a group on the other half. A few samples that are
nothing like the others, as noise of a hundred times the amplitude, count little: see `sample_errors`.
"""
