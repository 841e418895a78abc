"""Reading the user's data into files once, and rows of those files afterwards."""
