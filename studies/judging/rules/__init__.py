"""What judging goes by, as pure functions of columns: limits, front, hypervolume, picks, the final verdict."""
