"""Spot markets: which nodes are there when, what they cost, and what a job makes of them."""
