"""Options: every value typed and within bounds, or one error that says all that is wrong and no secret."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass, fields, replace
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twophase.errors import OptionError
from twophase.options import PassThrough, describe, key_of, option, parse
from twophase.secret import Secret

PASSWORD = "hunter2"


@dataclass(frozen=True, kw_only=True)
class Options:
    topic: str = option(doc="The topic that rows go to.")
    transaction_timeout_ms: int = option(
        doc="How long an epoch may take.", default=900_000, minimum=1000, maximum=10**6
    )
    sample_rate: float = option(doc="Share of the rows that are checked.", default=0.5, minimum=0, maximum=1.0)
    create_topic: bool = option(doc="Create the topic | not.", default=False)
    mode: Literal["wal", "mvcc", "xa"] = option(doc="How rows become visible.", default="wal")
    key_columns: tuple[str, ...] = option(doc="Columns of the key.", default=("id", "day"))
    owner: str | None = option(doc="Who writes.", default=None)
    batch_rows: int | None = option(doc="Rows a batch.", default=None, minimum=1)
    password: Secret | None = option(doc="The password of the user.", default=None)
    kafka: PassThrough = option(doc="Handed to the client as it is.", prefix="kafka.")

    def problems(self) -> Iterator[str]:
        if self.mode == "xa" and self.key_columns:
            yield "mode xa takes no keyColumns"
        if self.owner == self.topic:
            yield "owner and topic are the same"


@dataclass(frozen=True, kw_only=True)
class Needy:
    user: str = option(doc="Who.")
    password: Secret = option(doc="The password.")
    hosts: tuple[str, ...] = option(doc="Where.")
    port: int = option(doc="Which port.")


def wrong(cls: type[Any], given: Mapping[str, str], **how: Any) -> tuple[str, ...]:
    with pytest.raises(OptionError) as caught:
        parse(cls, given, **how)
    assert caught.value.problems
    for problem in caught.value.problems:
        assert problem in str(caught.value)
    return caught.value.problems


def test_options_not_given_have_their_defaults() -> None:
    assert parse(Options, {"topic": "orders"}) == Options(topic="orders")
    assert parse(Options, {"topic": "orders"}).kafka == PassThrough()


def test_every_kind_of_option_is_converted_from_text() -> None:
    given = {
        "topic": "orders",
        "transactionTimeoutMs": "60000",
        "sampleRate": "1e-1",
        "createTopic": "true",
        "mode": "mvcc",
        "keyColumns": "id, region ,day",
        "owner": "me",
        "batchRows": "+7",
        "password": "env:DB_PASSWORD",
        "kafka.acks": "all",
    }
    options = Options(
        topic="orders",
        transaction_timeout_ms=60_000,
        sample_rate=0.1,
        create_topic=True,
        mode="mvcc",
        key_columns=("id", "region", "day"),
        owner="me",
        batch_rows=7,
        password=Secret("env:DB_PASSWORD"),
        kafka=PassThrough({"acks": "all"}),
    )
    assert parse(Options, given) == options
    assert parse(Options, {key.lower(): text for key, text in given.items()}) == options
    assert parse(Options, {key.upper(): text for key, text in given.items() if "." not in key}) == replace(
        options, kafka=PassThrough()
    )


@given(st.integers(1000, 10**6), st.floats(0, 1), st.booleans(), st.lists(st.text("abc_", min_size=1)))
def test_what_spark_writes_as_text_is_read_back_as_the_same_value(
    timeout_ms: int, rate: float, create: bool, columns: list[str]
) -> None:
    given = {
        "topic": "orders",
        "transactiontimeoutms": str(timeout_ms),
        "samplerate": repr(rate),
        "createtopic": str(create).lower(),
        "keycolumns": ",".join(columns),
    }
    options = parse(Options, given)
    assert options.transaction_timeout_ms == timeout_ms
    assert options.sample_rate == rate
    assert options.create_topic is create
    assert options.key_columns == tuple(columns)


@given(
    st.dictionaries(st.text(max_size=12) | st.sampled_from(["topic", "MODE", "kafka.", "kafka.a"]), st.text(max_size=8))
)
def test_parse_gives_valid_options_or_an_option_error_and_nothing_else(given: dict[str, str]) -> None:
    try:
        options = parse(Options, given)
    except OptionError:
        assert wrong(Options, given)
    else:
        assert {key.lower() for key in given} <= {"topic", "mode"} | {
            key.lower() for key in given if "kafka." in key.lower()
        }
        assert options.topic.strip()


@pytest.mark.parametrize(
    ("key", "text", "problem"),
    [
        ("transactionTimeoutMs", "soon", "transactionTimeoutMs is 'soon', not a whole number"),
        ("transactionTimeoutMs", "1_000", "transactionTimeoutMs is '1_000', not a whole number"),
        ("transactionTimeoutMs", "1000.0", "transactionTimeoutMs is '1000.0', not a whole number"),
        ("transactionTimeoutMs", "١٢٣٤", "transactionTimeoutMs is '١٢٣٤', not a whole number"),
        ("transactionTimeoutMs", "", "transactionTimeoutMs is '', not a whole number"),
        ("transactionTimeoutMs", "9" * 5000, f"transactionTimeoutMs is '{'9' * 60}…', not a whole number"),
        ("transactionTimeoutMs", "999", "transactionTimeoutMs is 999, below the minimum of 1000"),
        ("transactionTimeoutMs", "1000001", "transactionTimeoutMs is 1000001, above the maximum of 1000000"),
        ("batchRows", "0", "batchRows is 0, below the minimum of 1"),
        ("sampleRate", "nan", "sampleRate is 'nan', not a number"),
        ("sampleRate", "inf", "sampleRate is 'inf', not a number"),
        ("sampleRate", "1e999", "sampleRate is '1e999', not a number"),
        ("sampleRate", "1.5", "sampleRate is 1.5, above the maximum of 1.0"),
        ("createTopic", "yes", "createTopic is 'yes', neither true nor false"),
        ("createTopic", "1", "createTopic is '1', neither true nor false"),
        ("mode", "undo", "mode is 'undo', not one of wal, mvcc, xa"),
        ("keyColumns", "a,,b", "keyColumns is 'a,,b', a list with an empty item"),
        ("topic", " ", "topic is required, and empty"),
    ],
)
def test_a_wrong_value_is_refused_with_the_option_the_value_and_the_reason(key: str, text: str, problem: str) -> None:
    assert wrong(Options, {"topic": "orders", key: text}) == (problem,)
    assert wrong(Options, {"topic": "orders", key.lower(): text}) == (problem,)


def test_bounds_include_their_ends() -> None:
    for timeout_ms in (1000, 10**6):
        options = parse(Options, {"topic": "orders", "transactionTimeoutMs": str(timeout_ms)})
        assert options.transaction_timeout_ms == timeout_ms


def test_true_false_and_choices_are_read_in_any_case() -> None:
    options = parse(Options, {"topic": "orders", "createTopic": "True", "mode": "MVCC"})
    assert (options.create_topic, options.mode) == (True, "mvcc")


def test_an_empty_list_is_a_list_without_items() -> None:
    assert parse(Options, {"topic": "orders", "keyColumns": ""}).key_columns == ()


def test_a_value_that_is_not_text_is_refused() -> None:
    assert wrong(Options, {"topic": "orders", "batchRows": 7}) == ("batchRows must be given as text",)  # type: ignore[dict-item]


def test_all_wrong_options_are_reported_at_once() -> None:
    given = {"transactiontimeoutms": "soon", "mode": "undo", "tpoic": "orders", "createtopic": "maybe"}
    assert wrong(Options, given) == (
        "topic is required",
        "transactionTimeoutMs is 'soon', not a whole number",
        "createTopic is 'maybe', neither true nor false",
        "mode is 'undo', not one of wal, mvcc, xa",
        "unknown option 'tpoic': did you mean topic?",
    )


def test_required_options_must_be_there_and_not_empty() -> None:
    keys = ("user", "password", "hosts", "port")
    assert wrong(Needy, {}) == tuple(f"{key} is required" for key in keys)
    assert wrong(Needy, dict.fromkeys(keys, "")) == tuple(f"{key} is required, and empty" for key in keys)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("tpoic", ": did you mean topic?"),
        ("transaction.timeout.ms", ": did you mean transactionTimeoutMs?"),
        ("transactiontimeout", ": did you mean transactionTimeoutMs?"),
        ("pasword", ": did you mean password?"),
        ("kafka", ": did you mean kafka.*?"),
        ("kafka.", ": did you mean kafka.*?"),
        ("zzz", ""),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_name(key: str, nearest: str) -> None:
    assert wrong(Options, {"topic": "orders", key: PASSWORD}) == (f"unknown option {key!r}{nearest}",)


def test_keys_that_spark_adds_are_ignored_in_any_case_when_told_so() -> None:
    given = {"topic": "orders", "checkpointlocation": "/c", "queryName": "q", "path": "/p"}
    assert parse(Options, given, ignore=("path", "checkpointLocation", "queryname")) == Options(topic="orders")
    assert len(wrong(Options, given)) == 3


def test_an_option_of_that_name_is_read_although_the_key_is_ignored() -> None:
    assert parse(Options, {"topic": "orders"}, ignore=["topic"]).topic == "orders"


def test_a_key_given_twice_in_different_case_is_refused() -> None:
    assert wrong(Options, {"topic": "a", "Topic": "b"}) == ("topic is given twice, in different case",)
    given = {"topic": "a", "kafka.acks": "1", "KAFKA.ACKS": "all"}
    assert wrong(Options, given) == ("KAFKA.ACKS is given twice, in different case",)


def test_checks_across_options_are_reported_with_unknown_keys() -> None:
    assert wrong(Options, {"topic": "t", "owner": "t", "mode": "xa", "zzz": ""}) == (
        "unknown option 'zzz'",
        "mode xa takes no keyColumns",
        "owner and topic are the same",
    )


def test_checks_across_options_wait_until_each_value_is_right() -> None:
    given = {"topic": "t", "owner": "t", "batchRows": "0"}
    assert wrong(Options, given) == ("batchRows is 0, below the minimum of 1",)


def test_a_pass_through_collects_the_keys_under_its_prefix_as_they_came() -> None:
    given = {"topic": "t", "kafka.bootstrap.servers": "a:1,b:2", "KAFKA.Linger.ms": "5"}
    settings = parse(Options, given).kafka
    assert dict(settings) == {"bootstrap.servers": "a:1,b:2", "Linger.ms": "5"}
    assert settings.reveal() == {"bootstrap.servers": "a:1,b:2", "Linger.ms": "5"}


def test_an_option_s_own_key_goes_before_a_prefix_and_a_longer_prefix_before_a_shorter() -> None:
    @dataclass(frozen=True)
    class Nested:
        all: PassThrough = option(doc="All.", prefix="k")
        admin: PassThrough = option(doc="Admin.", prefix="k.admin.")
        kind: str = option(doc="Kind.", default="")

    assert parse(Nested, {"kind": "x", "k.admin.a": "1", "k.b": "2"}) == Nested(
        all=PassThrough({".b": "2"}), admin=PassThrough({"a": "1"}), kind="x"
    )


def test_a_pass_through_adds_to_its_default() -> None:
    @dataclass(frozen=True)
    class Tuned:
        kafka: PassThrough = option(
            doc="Kafka.", prefix="kafka.", default=PassThrough({"acks": "all", "linger.ms": "5"})
        )

    assert dict(parse(Tuned, {"kafka.linger.ms": "9"}).kafka) == {"acks": "all", "linger.ms": "9"}


@pytest.mark.parametrize(
    "key",
    [
        "ssl.key.password",
        "sasl.password",
        "SASL.PASSWORD",
        "sasl.jaas.config",
        "client.secret",
        "api.token",
        "aws.access.key.id",
        "basic.auth.user.info",
        "credentials",
        "ssl.key.passphrase",
        "sasl.oauthbearer.config",
    ],
)
def test_a_pass_through_value_under_a_secret_s_key_is_not_printed_but_revealed(key: str) -> None:
    options = parse(Options, {"topic": "t", f"kafka.{key}": PASSWORD})
    assert options.kafka[key] == Secret(PASSWORD)
    assert options.kafka.reveal() == {key: PASSWORD}
    assert PASSWORD not in repr(options) + str(options.kafka) + f"{options.kafka}"


def test_a_reference_in_a_pass_through_is_resolved_at_use(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = parse(Options, {"topic": "t", "kafka.client.id": "env:TWOPHASE_TEST_ID"}).kafka
    monkeypatch.setenv("TWOPHASE_TEST_ID", "me")
    assert settings.reveal() == {"client.id": "me"}
    assert "env:TWOPHASE_TEST_ID" in repr(settings)


@pytest.mark.parametrize(
    "given",
    [
        {"password": PASSWORD, "mode": "undo"},
        {"pasword": PASSWORD},
        {"topic": "t", "password": PASSWORD, "PASSWORD": PASSWORD + "!"},
        {"kafka.sasl.password": PASSWORD},
        {"kafka.other": PASSWORD, "KAFKA.OTHER": PASSWORD},
    ],
)
def test_no_error_shows_a_secret(given: dict[str, str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse(Options, given)
    assert PASSWORD not in str(caught.value) + repr(caught.value) + repr(vars(caught.value))


def test_options_are_frozen_hashable_picklable_and_print_no_secret() -> None:
    given = {"topic": "t", "password": PASSWORD, "kafka.sasl.password": PASSWORD, "kafka.acks": "all"}
    options = parse(Options, given)
    assert pickle.loads(pickle.dumps(options)) == options
    assert len({options, parse(Options, given)}) == 1
    assert PASSWORD not in repr(options)
    assert "'acks': 'all'" in repr(options)
    with pytest.raises(FrozenInstanceError):
        options.topic = "other"  # type: ignore[misc]


def test_the_table_has_a_row_for_each_option_in_order() -> None:
    assert describe(Options) == (
        "| option | type | default | meaning |\n"
        "| --- | --- | --- | --- |\n"
        "| `topic` | text | **required** | The topic that rows go to. |\n"
        "| `transactionTimeoutMs` | whole number, ≥ 1000, ≤ 1000000 | `900000` | How long an epoch may take. |\n"
        "| `sampleRate` | number, ≥ 0, ≤ 1.0 | `0.5` | Share of the rows that are checked. |\n"
        "| `createTopic` | `true` or `false` | `false` | Create the topic \\| not. |\n"
        "| `mode` | `wal` or `mvcc` or `xa` | `wal` | How rows become visible. |\n"
        "| `keyColumns` | texts, separated by commas | `id,day` | Columns of the key. |\n"
        "| `owner` | text | none | Who writes. |\n"
        "| `batchRows` | whole number, ≥ 1 | none | Rows a batch. |\n"
        "| `password` | secret | none | The password of the user. |\n"
        "| `kafka.*` | text each | none | Handed to the client as it is. |\n"
    )


def test_the_table_shows_no_default_that_is_a_secret() -> None:
    @dataclass(frozen=True)
    class Risky:
        password: Secret = option(doc="The password.", default=Secret(PASSWORD))

    assert "Secret('***')" in describe(Risky)
    assert PASSWORD not in describe(Risky)


@pytest.mark.parametrize(
    ("name", "key"), [("topic", "topic"), ("transaction_timeout_ms", "transactionTimeoutMs"), ("sha_256", "sha256")]
)
def test_a_field_s_key_is_its_name_in_camel_case(name: str, key: str) -> None:
    assert key_of(name) == key


def test_every_field_of_the_example_can_be_set_by_its_key() -> None:
    keys = [key_of(each.name) for each in fields(Options) if each.name != "kafka"]
    problems = wrong(Options, dict.fromkeys(keys, "?"))
    assert not [problem for problem in problems if problem.startswith("unknown")]


def test_a_wrong_declaration_is_a_type_error() -> None:
    @dataclass(frozen=True)
    class Plain:
        topic: str = "t"

    @dataclass(frozen=True)
    class Odd:
        when: complex = option(doc="When.", default=0j)

    @dataclass(frozen=True)
    class Either:
        what: int | str = option(doc="What.", default=0)

    @dataclass(frozen=True)
    class Bounded:
        topic: str = option(doc="Topic.", default="t", minimum=1)

    @dataclass(frozen=True)
    class Unprefixed:
        kafka: PassThrough = option(doc="Kafka.", default=PassThrough())

    @dataclass(frozen=True)
    class Twins:
        a_b: str = option(doc="One.", default="")
        ab: str = option(doc="Other.", default="")

    declarations: list[type[Any]] = [Plain, Odd, Either, Bounded, Unprefixed, Twins]
    for declaration in declarations:
        with pytest.raises(TypeError):
            parse(declaration, {})
        with pytest.raises(TypeError):
            describe(declaration)
