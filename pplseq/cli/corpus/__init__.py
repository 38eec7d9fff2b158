"""Commands about texts: counts of pairs and clusters of words."""
