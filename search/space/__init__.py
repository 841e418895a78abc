"""The search space: possible precisions of groups on a target, the user's rules, and assignments as arrays."""
