"""The worker processes of this host: starting, watching, restarting and ending them."""
