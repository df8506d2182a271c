"""The options of the Pravega source."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from twophase.clients.pravega.access import Access
from twophase.clients.pravega.stream import Stream, problem_with
from twophase.options import key_of, option
from twophase.secret import Secret
from twophase.sources.pravega.cut import from_text

EARLIEST, LATEST = "earliest", "latest"


@dataclass(frozen=True, kw_only=True)
class PravegaSourceOptions:
    """The options of `twophase-pravega`, for reading."""

    controller: str = option(doc="Where the controller is: a host and a port, as in `controller:9090`.")
    scope: str = option(doc="The scope of the stream.")
    stream: str = option(doc="The stream to read.")
    starting_cut: str | None = option(
        doc='Where a new query begins: `earliest`, `latest`, or a stream cut as JSON, `{"shop/orders": {"0": 1048}}`: the position '
        "of each segment. A query that goes on takes what its checkpoint says. By default `latest` for a stream, `earliest` for a "
        "batch.",
        default=None,
    )
    ending_cut: str | None = option(doc="Where a batch ends: `latest`, or a stream cut as JSON.", default=None)
    max_bytes_per_trigger: int | None = option(
        doc="How many bytes an epoch takes at most, of all segments together, by their backlog; but one event if there is any. "
        "What it takes is read twice: once to find where events end.",
        default=None,
        minimum=1,
    )
    tls: bool = option(doc="Whether controller and segment stores are spoken to by TLS.", default=False)
    tls_trust: str | None = option(
        doc="A file with the certificates to trust, if they are not the machine's own; the same path on every machine.",
        default=None,
    )
    user: str | None = option(doc="The user, for Basic authentication.", default=None)
    password: Secret | None = option(doc="The user's password, best as `env:NAME` or `file:PATH`.", default=None)
    request_timeout_ms: int = option(
        doc="How long to wait for an answer, and to try again while the controller is gone.",
        default=60_000,
        minimum=1_000,
    )

    @property
    def access(self) -> Access:
        return Access(self.controller, self.tls, self.tls_trust, self.user, self.password)

    def problems(self) -> Iterable[str]:
        yield from self.access.problems()
        names = [(name, problem_with(getattr(self, name))) for name in ("scope", "stream")]
        yield from (f"{name} {problem}" for name, problem in names if problem)
        if any(problem for _, problem in names):
            return
        for name, words in (("starting_cut", (EARLIEST, LATEST)), ("ending_cut", (LATEST,))):
            given = getattr(self, name)
            if given is not None and given not in words:
                try:
                    from_text(Stream(self.scope, self.stream), given)
                except ValueError as error:
                    yield f"{key_of(name)} {error}"
