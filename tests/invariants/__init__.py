"""Every invariant of the protocol, by its number, on real checkpoints: what is in the target after each step."""
