"""The rules of judging as pure functions of columns: limits, front, hypervolume, picks, the final verdict."""
