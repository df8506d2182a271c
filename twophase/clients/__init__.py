"""Clients of vendors, as far as sinks and sources share them. Nothing of the core imports them."""
