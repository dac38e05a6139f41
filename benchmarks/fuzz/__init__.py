"""What strangers and guests can send, made up by the million: nothing of it may raise, or be
believed."""
