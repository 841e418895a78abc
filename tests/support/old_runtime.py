"""What ONNX Runtime 1.23, the last one for Python 3.10, cannot run, and later ones can."""

from __future__ import annotations

import onnxruntime
import pytest

OLD = tuple(map(int, onnxruntime.__version__.split(".")[:2])) < (1, 24)
NEWER = pytest.mark.skipif(OLD, reason="ONNX Runtime 1.23 cannot run it")
