"""Sinks and sources with one mistake each, for the suites to catch. No test is in here, so that another process can import them."""
