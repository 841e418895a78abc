"""Real servers on this machine: databases and object stores."""
