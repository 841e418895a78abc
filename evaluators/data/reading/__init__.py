"""Reading what the user gives into files once, and those files by the row."""
