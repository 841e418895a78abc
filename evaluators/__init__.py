"""How good one candidate is: everything that runs on the target, in an isolated process."""
