"""What is believed about one task: prior, posterior, the running belief, and the units of rewards."""
