"""The steps of the benchmark `gpu`, each of which measures in a process of its own."""
