"""What strangers try against real daemons, and whether it has any effect."""
