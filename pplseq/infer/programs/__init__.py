"""From a Pyro program to a chain: messengers, loops over time, distributions of whole chains."""
