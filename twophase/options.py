"""Options: one frozen dataclass a connector, parsed once, every wrong option reported at once.

    @dataclass(frozen=True, kw_only=True)
    class KafkaOptions:
        topic: str = option(doc="The topic that rows go to.")
        transaction_timeout_ms: int = option(doc="How long an epoch may take.", default=900_000, minimum=1_000)
        password: Secret | None = option(doc="The password of the user.", default=None)
        kafka: PassThrough = option(doc="Handed to the client as it is.", prefix="kafka.")

    options = parse(KafkaOptions, {"topic": "orders", "transactiontimeoutms": "60000"})

The mechanism: the field `transaction_timeout_ms` is the option ``transactionTimeoutMs``. Spark hands options over as
text, with keys in lower case, so keys are compared without case and values are converted by the field's annotation:
str, int, float, bool (true or false), `Secret`, a Literal of texts, ``tuple[str, ...]`` (separated by commas), each of
these ``| None``; or `PassThrough`, which collects every key under a prefix. A field without a default is required, and
may not be empty. What spans several fields is checked by the dataclass's own method ``problems() -> Iterable[str]``, if
it has one.

The guarantee: `parse` gives an instance in which every value is of its type and within its bounds, or raises one
OptionError whose `problems` has a sentence for each wrong option; only ``problems()`` has to wait until each single
value is right, because it reads all of them. No message shows the value of a secret, of a pass-through or of an unknown
option, which may be a misspelt password.

What it can't do: constructing the dataclass directly checks nothing, and a secret inside a plain str option (a URL
with a password) is not recognised.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import MappingProxyType, NoneType, UnionType
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from twophase.errors import OptionError
from twophase.secret import Secret

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T", bound="DataclassInstance")

_SECRET_KEYS: Final = re.compile("pass|pwd|secret|token|key|jaas|credential|user.?info|auth|pem|certificate")
_NO_SECRETS: Final = (".type", ".location", ".algorithm")
"""Ends of keys that say where a secret is, or what kind of thing it is."""
_METADATA: Final = "twophase.option"


class PassThrough(Mapping[str, str | Secret]):
    """Settings for a vendor's client: its own keys and values, frozen, with what looks like a secret as a `Secret`.

    That is a value spelled ``env:NAME``, or one whose key speaks of a password, a key, a token and the like, which may be
    spelled ``file:PATH`` too. Taking a plain value for a secret costs nothing: `reveal` gives it to the client as it is.
    """

    def __init__(self, settings: Mapping[str, str | Secret] = MappingProxyType({})):
        self._settings = {key: _guarded(key, value) for key, value in settings.items()}

    def reveal(self) -> dict[str, str]:
        """Every setting with its plain value, for the client and nobody else."""
        return {key: value.reveal() if isinstance(value, Secret) else value for key, value in self.items()}

    def __getitem__(self, key: str) -> str | Secret:
        return self._settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._settings)

    def __len__(self) -> int:
        return len(self._settings)

    def __hash__(self) -> int:
        return hash(frozenset(self._settings.items()))

    def __repr__(self) -> str:
        return f"PassThrough({self._settings!r})"


def _guarded(key: str, value: str | Secret) -> str | Secret:
    # A path spelled file:/… is an ordinary value where the key does not speak of a secret: resolving it would hand the client
    # the content of the file in place of its name.
    secret = _SECRET_KEYS.search(key.lower()) and not key.lower().endswith(_NO_SECRETS)
    if isinstance(value, str) and (secret or value.startswith("env:")):
        return Secret(value)
    return value


def option(
    *,
    doc: str,
    default: Any = MISSING,
    minimum: float | None = None,
    maximum: float | None = None,
    prefix: str | None = None,
) -> Any:
    """A field of an options dataclass.

    Parameters
    ----------
    doc:
        A sentence for the person who sets it; it goes into the generated table.
    default:
        The value if it is not given; without one the option is required. A `PassThrough` is never required.
    minimum, maximum:
        Bounds of a number, both included.
    prefix:
        For a `PassThrough`: what the collected keys begin with, such as ``kafka.``.
    """
    if prefix is not None and default is MISSING:
        default = PassThrough()
    return field(default=default, metadata={_METADATA: (doc, minimum, maximum, prefix)})


def parse(cls: type[T], given: Mapping[str, str], *, ignore: Collection[str] = ()) -> T:
    """An instance of the options dataclass `cls`, or one OptionError for all that is wrong with `given`.

    Parameters
    ----------
    given:
        The options as Spark hands them over: text by key, in any case.
    ignore:
        Keys that may be there and mean nothing here, such as those that Spark adds: path, checkpointLocation,
        queryName.
    """
    declared = _declared(cls)
    texts, misplaced = _assigned(declared, given, {key.lower() for key in ignore})
    values: dict[str, Any] = {}
    wrong: list[str] = []
    for each in declared:
        try:
            values[each.name] = _value(each, texts[each.name])
        except _Wrong as reason:
            wrong.append(f"{each.key} {reason}")
    problems = wrong + misplaced
    if not wrong:
        options = cls(**values)
        across: Callable[[], Iterable[str]] | None = getattr(options, "problems", None)
        problems += across() if across else ()
        if not problems:
            return options
    count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
    raise OptionError(f"{count} with the options: " + "; ".join(problems), problems=problems)


def describe(cls: type[DataclassInstance]) -> str:
    """The options of `cls` as a Markdown table: option, type, default, meaning."""
    rows = [("option", "type", "default", "meaning"), ("---", "---", "---", "---")]
    rows += [(f"`{each.key}`", _kind_shown(each), _default_shown(each), each.doc) for each in _declared(cls)]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |\n" for row in rows)


def texts_of(given: str | Iterable[str]) -> tuple[str, ...]:
    """What an argument that is a list of names holds; a single name is a list of one, and not of its letters."""
    return (given,) if isinstance(given, str) else tuple(given)


def key_of(name: str) -> str:
    """The option's key for a field's name: transaction_timeout_ms is transactionTimeoutMs."""
    first, *rest = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in rest)


class _Wrong(Exception):
    """What is wrong with one option, as the end of a sentence that begins with its key."""


@dataclass(frozen=True)
class _Option:
    """One option: all that its field and its annotation say about it."""

    name: str
    key: str
    kind: Any  # the annotation without `| None`
    doc: str
    default: Any
    minimum: float | None
    maximum: float | None
    prefix: str | None

    @property
    def required(self) -> bool:
        return self.default is MISSING

    def takes(self, key: str) -> bool:
        if self.prefix is None:
            return key.lower() == self.key.lower()
        return key.lower().startswith(self.prefix.lower()) and len(key) > len(self.prefix)


def _declared(cls: type[DataclassInstance]) -> list[_Option]:
    """The options of `cls` in their order; TypeError if the declaration itself is wrong."""
    hints = get_type_hints(cls)
    options = [_read(each, hints[each.name]) for each in fields(cls)]
    if len({each.key.lower() for each in options}) < len(options):
        raise TypeError(f"{cls.__name__}: two options differ only in case")
    return options


def _read(each: Field[Any], kind: Any) -> _Option:
    if _METADATA not in each.metadata:
        raise TypeError(f"{each.name}: declare it by option()")
    doc, minimum, maximum, prefix = each.metadata[_METADATA]
    if get_origin(kind) in (Union, UnionType):
        kinds = [one for one in get_args(kind) if one is not NoneType]
        kind = kinds[0] if len(kinds) == 1 else kind
    texts = get_origin(kind) is Literal and all(isinstance(choice, str) for choice in get_args(kind))
    if not texts and kind not in (str, int, float, bool, Secret, tuple[str, ...], PassThrough):
        raise TypeError(f"{each.name}: an option can't be of the type {kind}")
    if (kind is PassThrough) != (prefix is not None):
        raise TypeError(f"{each.name}: PassThrough and prefix go together")
    if (minimum, maximum) != (None, None) and kind not in (int, float):
        raise TypeError(f"{each.name}: only a number has bounds")
    key = f"{prefix}*" if prefix is not None else key_of(each.name)
    return _Option(each.name, key, kind, doc, each.default, minimum, maximum, prefix)


def _assigned(
    declared: list[_Option], given: Mapping[str, str], ignored: set[str]
) -> tuple[dict[str, dict[str, str]], list[str]]:
    """What was given for each option, by field name and key; and a sentence for each key that belongs to none."""
    # A key of its own goes before a prefix, and a longer prefix before a shorter one.
    by_rank = sorted(declared, key=lambda each: (each.prefix is not None, -len(each.prefix or "")))
    texts: dict[str, dict[str, str]] = {each.name: {} for each in declared}
    problems: list[str] = []
    seen: set[str] = set()
    for key, text in given.items():
        home = next((each for each in by_rank if each.takes(key)), None)
        if key.lower() in seen:
            problems.append(f"{key if home is None or home.prefix else home.key} is given twice, in different case")
        elif home is not None:
            texts[home.name][key[len(home.prefix or "") :]] = text
        elif key.lower() not in ignored:
            problems.append(f"unknown option {key!r}{_nearest(key, declared)}")
        seen.add(key.lower())
    return texts, problems


def _nearest(key: str, declared: list[_Option]) -> str:
    keys = {each.key.lower(): each.key for each in declared}
    near = difflib.get_close_matches(key.lower(), keys, n=1)
    return f": did you mean {keys[near[0]]}?" if near else ""


def _value(option: _Option, given: dict[str, str]) -> Any:
    if not all(isinstance(text, str) for text in given.values()):
        raise _Wrong("must be given as text")
    if option.prefix is not None:
        return PassThrough({**option.default, **given})
    if not given:
        if option.required:
            raise _Wrong("is required")
        return option.default
    (text,) = given.values()
    if option.required and not text.strip():
        raise _Wrong("is required, and empty")
    value = _converted(option.kind, text)
    if option.minimum is not None and value < option.minimum:
        raise _Wrong(f"is {value}, below the minimum of {option.minimum}")
    if option.maximum is not None and value > option.maximum:
        raise _Wrong(f"is {value}, above the maximum of {option.maximum}")
    return value


def _converted(kind: Any, text: str) -> Any:
    """`text` as a value of `kind`; stricter than int() and float(), which take 1_000, nan and other scripts' digits."""
    shown = repr(text if len(text) <= 60 else text[:60] + "…")
    if kind in (str, Secret):
        return kind(text)
    if kind is int and re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        return int(text)
    if kind is int:
        raise _Wrong(f"is {shown}, not a whole number")
    if kind is float:
        if re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?", text) and math.isfinite(float(text)):
            return float(text)
        raise _Wrong(f"is {shown}, not a number")
    if kind is bool:
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise _Wrong(f"is {shown}, neither true nor false")
    if get_origin(kind) is Literal:
        for choice in get_args(kind):
            if choice.lower() == text.lower():
                return choice
        raise _Wrong(f"is {shown}, not one of {', '.join(get_args(kind))}")
    items = tuple(item.strip() for item in text.split(",")) if text.strip() else ()
    if "" in items:
        raise _Wrong(f"is {shown}, a list with an empty item")
    return items


def _kind_shown(option: _Option) -> str:
    if get_origin(option.kind) is Literal:
        return " or ".join(f"`{choice}`" for choice in get_args(option.kind))
    name = {
        str: "text",
        int: "whole number",
        float: "number",
        bool: "`true` or `false`",
        Secret: "secret",
        PassThrough: "text each",
    }.get(option.kind, "texts, separated by commas")
    bounds = [f"≥ {option.minimum}"] if option.minimum is not None else []
    bounds += [f"≤ {option.maximum}"] if option.maximum is not None else []
    return ", ".join([name, *bounds])


def _default_shown(option: _Option) -> str:
    if option.required:
        return "**required**"
    if option.default is None or option.default in ("", (), PassThrough()):
        return "none"
    if isinstance(option.default, bool):
        return f"`{str(option.default).lower()}`"
    if isinstance(option.default, tuple):
        return f"`{','.join(option.default)}`"
    return f"`{option.default}`"
