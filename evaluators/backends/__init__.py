"""Backends, which build and run engines: one folder for each, with the same file names.

`kind.py` declares what is known of a backend before it is opened; the registry finds one by its name. Nothing here
imports a runtime before a backend is opened, and nothing outside a backend's folder tells it from others by its name.
"""
