"""What Spotlight and its rivals make of real spot markets: hours and dollars to the same score."""
