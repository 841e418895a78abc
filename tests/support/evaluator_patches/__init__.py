"""Changes to evaluator processes under test. The folder is on their module path, for `sitecustomize.py`."""
