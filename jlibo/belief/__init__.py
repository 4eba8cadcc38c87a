"""Gaussian beliefs about one task: prior, posterior, running belief, and the units of its rewards."""
