"""A closer look at one engine: per-layer times, and its outputs beside those of ONNX Runtime.

Needs the device for what is not stored. Changes nothing of a search: what it adds are profiles and notes of them.
"""
