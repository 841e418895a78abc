"""Write the chosen engine with what belongs to it, and prove that what was written works."""
