"""Compiled programs on disk, for later processes: of sweeps and experiments, and of the tuner. Internal."""
