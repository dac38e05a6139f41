"""One process on one accelerator: SP-group leader, member, scorer and trainer rank."""
