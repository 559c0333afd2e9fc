"""A simulated accelerator for tests, where no GPU is at hand (see `device`)."""
