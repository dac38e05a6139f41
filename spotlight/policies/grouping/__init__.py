"""How a node divides its workers into SP groups."""
