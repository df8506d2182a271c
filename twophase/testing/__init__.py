"""What proves a sink or a source: for the tests of this project, and for anybody who writes one of their own."""
