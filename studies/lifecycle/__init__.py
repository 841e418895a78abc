"""A study from its start to its end, each step as one call: made and searched, delivered, renewed, deleted."""
