"""Commands about streams of text."""
