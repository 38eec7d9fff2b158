"""How well fitted models fit: residuals, draws held against data, and models beside each other."""
