"""The one reason for which a test of the suite is skipped: a capability that the sink declares, or does not."""

from __future__ import annotations

import pytest

from twophase.testing.sink_steps import SinkSteps


def only_if(steps: SinkSteps, **capabilities: bool) -> None:
    """Skip the test unless the sink's capabilities are these; the reason names the one that differs."""
    declared = steps.sink().capabilities
    for name, wanted in capabilities.items():
        if bool(getattr(declared, name)) is not wanted:
            pytest.skip(f"by capability: this is for sinks with {name}={wanted}")


def only_if_target(steps: SinkSteps, **claims: bool) -> None:
    """The same, for what a `SinkTarget` claims."""
    for name, wanted in claims.items():
        if bool(getattr(steps.target, name)) is not wanted:
            pytest.skip(f"by claim: this is for targets with {name}={wanted}")
