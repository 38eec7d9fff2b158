"""Commands of linear dynamical systems for text."""
