"""Streams: channels of a float model that can be scaled by factors without changing its outputs.

Knows which ops allow it and which constants a factor moves into; chooses factors for given statistics. Runs no model.
Public: `find_streams` in `find`; `Streams` in `result`; `limit_exponents` in `fp16_limits`; `Layer` in `layers`.
"""
