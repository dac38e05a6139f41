"""What Spotlight and its rivals make of real spot markets, in hours and dollars to the same score."""
