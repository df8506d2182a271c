"""What an operation depends on, and what it changes: two operations whose footprints are apart can be done in either order.

A footprint is made of *tokens*, names for pieces of the world:

============================== ====================================================================
``("file", path)``             a file; ``("folder", path)``: the names in a folder
``("line",)``                  target a: its line of epochs
``("staged", attempt)``        target a: one staged share; ``("staged",)``: which ones there are
``("fences",)``                target a: its fences
``("pending", owner, attempt)`` target b: one share; ``("pending", owner)``: which ones there are
``("voted", owner, attempt)``  target b: whether a share was voted for
``("markers", owner)``         target b: the markers of an owner
``("decided",)``               what is decided: not in the world, but looked at by the checks of requests
============================== ====================================================================

An operation *needs* what it reads and the pieces that it writes, and *makes* the pieces that it writes. Whoever changes one share
makes the set of shares too, and needs only its own: so two tasks that stage do not disturb each other, and whoever lists is
disturbed by both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from twophase.identity import Attempt, Owner

Token = tuple[str, ...]


class Footprint(NamedTuple):
    needs: frozenset[Token]
    makes: frozenset[Token]

    @classmethod
    def of_all(cls, footprints: Iterable[Footprint]) -> Footprint:
        """Touches whatever one of them touches."""
        every = tuple(footprints)
        return cls(frozenset().union(*(f.needs for f in every)), frozenset().union(*(f.makes for f in every)))

    def touches(self, other: Footprint) -> bool:
        """Whether the order of the two can matter."""
        return not (self.makes.isdisjoint(other.needs) and other.makes.isdisjoint(self.needs))


def footprint(name: str, target: str, arguments: tuple[Any, ...]) -> Footprint:
    """Of one operation: the transition's name, its target and arguments. What a look needs is said by whoever looks."""
    needs, makes = _files(name, arguments) if target == "files" else _TARGETS[target](name, arguments)
    return Footprint(frozenset(needs), frozenset(makes))


def death_in_line(attempt: Attempt) -> Footprint:
    """Of the death of a staged share of target a."""
    return _death({("staged", str(attempt))}, ("staged",))


def death_in_slots(owner: Owner, attempt: Attempt) -> Footprint:
    """Of the death of a share of target b."""
    mine = (str(owner), str(attempt))
    return _death({("pending", *mine), ("voted", *mine)}, ("pending", str(owner)))


def _death(tokens: set[Token], every: Token) -> Footprint:
    return Footprint(frozenset(tokens), frozenset({*tokens, every}))


_Tokens = tuple[set[Token], set[Token]]
_DECIDED: Token = ("decided",)


def _files(name: str, arguments: tuple[Any, ...]) -> _Tokens:
    path = str(arguments[0])
    if name == "list_folder":
        return {("folder", path)}, set()
    file: Token = ("file", path)
    if name == "read":
        return {file}, set()
    checked = {_DECIDED} if "/twophase/" in path else set()
    return {file, *checked}, {file, ("folder", path.rpartition("/")[0]), *checked}


def _line(name: str, arguments: tuple[Any, ...]) -> _Tokens:
    line: Token = ("line",)
    match name:
        case "fence":
            return {("fences",)}, {("fences",)}
        case "stage":
            mine = ("staged", str(arguments[0].attempt))
            return {("fences",), mine}, {mine, ("staged",)}
        case "commit":
            shares = {("staged", str(share.attempt)) for share in arguments[0].shares}
            return {line, _DECIDED, *shares}, {line, ("staged",), *shares}
        case "take_over":
            return {line}, {line}
        case "abort":
            marks = {("staged", mark) for _, mark in arguments[0]}
            return {line, _DECIDED, *marks}, {("staged",), *marks}
    raise AssertionError(f"no footprint is known of {name}")


def _slots(name: str, arguments: tuple[Any, ...]) -> _Tokens:
    if name == "begin":
        owner, attempt = str(arguments[0].owner), str(arguments[0].attempt)
        return {("pending", owner, attempt)}, {("pending", owner, attempt), ("pending", owner)}
    if name == "vote":
        owner, attempt = str(arguments[0].owner), str(arguments[0].attempt)
        return {("pending", owner, attempt), ("voted", owner, attempt)}, {("voted", owner, attempt)}
    if name == "end":
        owner, attempt = str(arguments[0]), str(arguments[1])
        shares: set[Token] = {("pending", owner, attempt), ("voted", owner, attempt)}
        markers: set[Token] = {("markers", owner)} if arguments[2] else set()
        return {*shares, *markers, _DECIDED}, {*shares, *markers, ("pending", owner)}
    raise AssertionError(f"no footprint is known of {name}")


_TARGETS = {"atomic": _line, "slots": _slots}
