"""What a run costs, would have cost, and will cost. Pure."""
