"""Both ends of the line to the isolated evaluator process: keeper, server, wire format, limits."""
