"""Mutants: the package with one promise broken, and who notices."""
