"""References of neural methods, which need torch."""
