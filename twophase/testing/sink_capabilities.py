"""The one reason for which a test of the suite is skipped: a capability that the sink declares, or does not."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
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


def batch_of_texts(steps: SinkSteps, texts: Sequence[str | None]) -> pa.RecordBatch:
    """Rows with numbers from 0 and these texts, if the target claims to keep texts."""
    batch = steps.target.typed_batch(pa.array(texts, pa.string()))
    if batch is None or "string" not in steps.target.arrow_types:
        pytest.skip("by claim: this target has no room for a column of texts")
    return batch
