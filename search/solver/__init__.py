"""Best assignments under additive costs: elimination, relaxation, integer program. Knows no measurement."""
