"""A backend without engines: it computes latencies and losses from a model of cost, so a search takes seconds.

For trying bitfront, and for tests of what surrounds a measurement. `kind.py` says what it is; nothing chooses it by
itself.
"""
