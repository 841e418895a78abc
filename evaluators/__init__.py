"""Everything that runs on the target, in an isolated process, to find out how good one candidate is."""
