"""Says nothing of the version it was written for."""
