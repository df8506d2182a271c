"""What the tests of this repository take from twophase.testing, as anybody's tests can."""

pytest_plugins = ["twophase.testing.servers.plugin"]
