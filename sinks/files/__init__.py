"""Tables of files: one folder an epoch, made visible by one rename."""
