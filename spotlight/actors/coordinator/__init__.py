"""One job after another: the process that decides for all nodes, and never loads torch."""
