"""Boxes of detections: their overlap, which of them are kept, and which objects they match."""
