"""The ledger and its records: what is in the folder after each step, whatever is lost, late, raced or damaged."""
