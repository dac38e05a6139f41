"""What is tried against real daemons, and whether it has any effect."""
