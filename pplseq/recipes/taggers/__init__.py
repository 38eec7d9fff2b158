"""Recipe of taggers."""
