"""The families of models: one file says what is particular to each of them."""
