"""The AutoML benchmark: how many trials a tuning task needs after other tasks. See `__main__`."""
