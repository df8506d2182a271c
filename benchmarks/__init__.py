"""How fast, beside what people had before: contenders interleaved in one run, as ratios."""
