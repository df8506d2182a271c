"""Real queries in child processes, and what is done to them: killed, stopped, restarted, compared row by row."""
