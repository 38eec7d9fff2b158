"""Recipe of linear dynamical systems of tables."""
