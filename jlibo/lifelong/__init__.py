"""The loop over tasks and steps, offline meta-learning, and the metrics of both."""
