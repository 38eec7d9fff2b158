"""Recipe of the linear dynamical system for text."""
