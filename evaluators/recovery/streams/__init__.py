"""Streams: channels of a float model that can take a factor each without changing what the model computes.

Knows which ops allow it and which constants a factor moves into; chooses factors for given statistics. Runs no model.
Public: `find_streams` in `find`; `Streams` in `result`; `limit_exponents` in `fp16_limits`; `Layer` in `layers`.
"""
