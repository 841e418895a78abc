"""A backend without engines: latencies and losses come from a written-down model of cost, so a search takes seconds.

For trying bitfront, and for tests of what surrounds a measurement. `kind.py` says what it is; nothing chooses it by
itself.
"""
