"""Pool files and the state file: what is read of them, with every fault at once."""
