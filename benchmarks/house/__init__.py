"""The shape of the house: how large the package is, and how much of it one message goes through."""
