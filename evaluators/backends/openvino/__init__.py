"""The backend OpenVINO, for the processor."""
