"""The worker processes of this host: started, watched, started again, ended together."""
