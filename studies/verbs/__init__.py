"""Every verb of the command line as a library function of the same name.

The functions raise; only `studies.cli` prints and exits.
"""
