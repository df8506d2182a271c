"""What PostgreSQL and its client say, as errors that say what to do.

A server names its errors by five characters, the SQLSTATE. A connection that can't be made has none: there the client has only the
server's words.
"""

from __future__ import annotations

import psycopg

from twophase.errors import OutcomeUnknown, SchemaMismatch, TargetUnavailable, TwophaseError

_PASSING_STATES = ("08", "40001", "40P01", "53300", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04", "55006")
"""Lost connections, a server that stops, starts or has no room, transactions that others stood in the way of, and a slot that
somebody reads from: rolled back, or looked up by whoever tries again."""
_ROLLED_BACK = ("40001", "40P01")
"""Passing, and known to have changed nothing."""
_PASSING_WORDS = (
    "starting up",
    "shutting down",
    "recovery",
    "too many",
    "connection slots",
    "not yet accepting",
    "terminating connection",
)
_TLS_WORDS = ("certificate", "server does not support SSL")
"""No certificate gets right by itself, nor does a server that speaks no TLS."""
_TLS_ADVICE = "what the server shows is not what sslmode, sslrootcert and host in dsn ask for"
_ADVICE = {
    "22": "a value does not fit its column",
    "23": "rows do not fit the table's constraints",
    "25006": "the server takes no writes: it is a standby, or default_transaction_read_only is set",
    "28": "the server does not accept the user: look at user and password in dsn",
    "3D000": "there is no such database: look at dsn",
    "3F000": "the schema is not there",
    "40": "the transaction was rolled back, because others stood in its way",
    "42501": "the user lacks a right",
    "42P01": "the table is not there",
    "53100": "the server's disk is full",
    "53200": "the server is out of memory, or of room for locks (max_locks_per_transaction)",
    "55P03": "somebody holds a lock on it for longer than lockTimeoutMs: see pg_locks",
    "57014": "an operator, or a time limit of the server, has ended the statement",
}
_MISFITS = ("22", "23")


def is_passing(error: psycopg.Error) -> bool:
    """Whether it may be over by itself, so that trying again makes sense."""
    state = error.sqlstate
    if state is not None:
        return state.startswith(_PASSING_STATES)
    if not isinstance(error, psycopg.OperationalError):
        return False
    # Without a state the connection was lost, or never made. What a server refuses while one connects begins with FATAL.
    said = str(error)
    return not _is_about_tls(said) and ("FATAL" not in said or any(words in said for words in _PASSING_WORDS))


def explained(error: psycopg.Error, doing: str) -> TwophaseError:
    """The error for what a server, or the client, said; without values of secrets, which the caller takes out."""
    state = error.sqlstate
    said = " ".join(str(error.diag.message_primary or error).split())
    if state is None:
        is_lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        what = _TLS_ADVICE if is_lost and _is_about_tls(said) else "no connection" if is_lost else "the client refused"
        return TargetUnavailable(f"{doing}: {what} ({said})")
    advice = next((_ADVICE[key] for key in (state, state[:2]) if key in _ADVICE), "PostgreSQL refused")
    if state.startswith(_MISFITS):
        detail = f" {error.diag.message_detail}" if error.diag.message_detail else ""
        where = f" ({error.diag.context.splitlines()[0]})" if error.diag.context else ""
        return SchemaMismatch(f"{doing}: {advice}: {said}{detail}{where}")
    return TargetUnavailable(f"{doing}: {advice} ({state}: {said})")


def _is_about_tls(said: str) -> bool:
    return any(words in said for words in _TLS_WORDS)


def unknown(error: psycopg.Error, doing: str) -> TwophaseError:
    """The same for a step that may have been taken when the connection was lost."""
    if is_passing(error) and error.sqlstate not in _ROLLED_BACK:
        said = " ".join(str(error).split())
        return OutcomeUnknown(f"{doing}: the server does not answer, and may have done it or not ({said}). Start again")
    return explained(error, doing)


def in_doubt(error: psycopg.Error, doing: str) -> TwophaseError:
    """The same for a question that waits for a transaction's end: one that does not end is neither committed nor rolled back."""
    if error.sqlstate == "55P03":
        return OutcomeUnknown(f"{doing}: a commit is under way, and does not end within lockTimeoutMs: see pg_locks")
    return explained(error, doing)
