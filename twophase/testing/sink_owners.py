"""What a sink promises about who writes: owners side by side or one at a time, generations, and names of all kinds."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pytest

from twophase.errors import Fenced, NotCommitted, OptionError, TwophaseError
from twophase.identity import Generation, Owner
from twophase.sink import WHOLE, Marker, Outcome, TakeOver
from twophase.testing.arrow_columns import ARROW_COLUMNS
from twophase.testing.sink_capabilities import only_if, only_if_target
from twophase.testing.sink_steps import SinkSteps, epoch_of
from twophase.testing.sink_target import VALUE

OTHER = Owner("another query", "sink")
ASKED_FOR = "asked for"
HOSTILE_NAMES = {
    "slashes": "a/b//c/",
    "dots": "../..",
    "dot": ".",
    "space": " a b ",
    "unicode": "ünïcode-漢字-🎉",
    "combining": "e\u0301 and é",
    "percent": "100%25%2F",
    "quotes": 'it\'s "quoted" `so`',
    "sql": "x'; DROP TABLE t; --",
    "newline": "two\nlines\r\ttab",
    "backslash": "a\\b",
    "wildcards": "*?[a]{b}",
    "dash": "-rf",
    "upper and lower": "CaseMatters",
    "equals": "epoch=0",
    "long": "x" * 100,
    "very long": "y" * 1000,
    "long unicode": "漢" * 100,
}


class SinkOwners:
    # ---- generations ----

    def test_a_fence_can_be_repeated_and_knows_no_other_ledger(self, steps: SinkSteps) -> None:
        """The same generation twice, a newer one, and a low number of another ledger: none of these is overtaken."""
        sink = steps.sink()
        for generation in (Generation(steps.ledger, 5), Generation(steps.ledger, 5), Generation(steps.ledger, 7)):
            sink.fence(steps.owner, generation)
            steps.sink().fence(steps.owner, generation)
        steps.sink().fence(steps.owner, Generation("other0ledger", 1))
        assert (steps.visible(), list(steps.target.residue())) == ([], [])

    def test_a_fence_keeps_older_generations_from_staging(self, steps: SinkSteps) -> None:
        """Where the target claims it: a task of an older generation fails, at begin or at its vote; others do not."""
        only_if_target(steps, fences=True)
        old, running = steps.prepare(0), steps.prepare(0)
        batch, task = steps.target.batch([8]), steps.task(running, 1)
        begun = steps.sink().begin(running, task)
        begun.write(batch)
        steps.sink().fence(steps.owner, steps.generation())
        with pytest.raises((Fenced, NotCommitted)):
            steps.share(old, 0, [9])
        with pytest.raises((Fenced, NotCommitted)):
            steps.vote(begun, task, batch)
        begun.abort()
        newer = steps.prepare(0)
        stranger = replace(steps, ledger="other0ledger", _records=0)
        stranger.share(replace(newer, prepared=replace(newer.prepared, generation=stranger.generation())), 0, [7])
        order = steps.order(newer, steps.share(newer, 0, [1]))
        assert steps.commit(order) is Outcome.COMMITTED
        assert steps.visible() == [1]

    def test_a_generation_that_was_overtaken_is_told_so(self, steps: SinkSteps) -> None:
        """Where the target claims it: the fence of an older generation is refused. So a restored ledger is noticed."""
        only_if_target(steps, fences=True)
        steps.sink().fence(steps.owner, Generation(steps.ledger, 5))
        with pytest.raises(Fenced):
            steps.sink().fence(steps.owner, Generation(steps.ledger, 4))

    # ---- several owners ----

    def test_two_owners_write_side_by_side_and_do_not_see_each_other(self, steps: SinkSteps) -> None:
        """Two sinks of one query in one target: the same ledger, the same generations, the same attempts."""
        only_if(steps, several_owners=True)
        one = steps
        other = replace(steps, owner=Owner(steps.owner.query, "another sink"), _tasks=iter(range(100)))
        for number in range(2):
            orders = [who.decided(number, [value + 10 * number]) for who, value in ((one, 1), (other, 2))]
            assert orders[0].shares[0].attempt == orders[1].shares[0].attempt
            for who, order in ((other, orders[1]), (one, orders[0])):
                assert len(who.leftovers()) >= 1
                assert who.commit(order) is Outcome.COMMITTED
        assert steps.visible() == [1, 2, 11, 12]
        for who in (one, other):
            markers = who.sink().status(who.owner, settled=True).markers
            assert {(marker.owner, marker.epoch) for marker in markers.values()} == {(who.owner, epoch_of(1))}
        assert list(steps.target.residue()) == []

    def test_an_owner_sees_and_deletes_only_what_it_staged_itself(self, steps: SinkSteps) -> None:
        """Two owners have staged under the same attempts; one loses everything, and the other's can be committed."""
        only_if(steps, several_owners=True)
        other = replace(steps, owner=Owner(steps.owner.query, "another sink"), _tasks=iter(range(100)))
        mine, others = steps.decided(0, [1]), other.decided(0, [2])
        steps.sweep()
        steps.sink().abort(steps.owner, other.leftovers())  # named by its mark, which is this owner's too
        assert set(steps.sink().alive(mine)) == {0}
        assert other.sink().alive(others) == {}
        with pytest.raises(NotCommitted):
            steps.commit(mine)
        assert other.commit(others) is Outcome.COMMITTED
        assert steps.visible() == [2]

    def test_there_is_nothing_to_take_over_where_several_owners_write(self, steps: SinkSteps) -> None:
        """A take-over of a target that takes several owners is a mistake of the caller, and says so."""
        only_if(steps, several_owners=True)
        marker = Marker(steps.owner, epoch_of(0), f"{steps.ledger}.2")
        with pytest.raises(TypeError):
            steps.sink().take_over(TakeOver(marker, replace(marker, owner=OTHER)))

    # ---- one owner at a time ----

    def test_a_stranger_sees_whose_line_it_is_and_can_not_write_to_it(self, steps: SinkSteps) -> None:
        """Status reports the newest marker whoever asks; a decision that moves the line from nowhere is refused."""
        only_if(steps, several_owners=False)
        stranger = steps.as_(OTHER)
        early = stranger.decided(0, [9])
        mine = steps.epoch(0, [1])
        assert stranger.sink().status(OTHER, settled=True).markers == {WHOLE: mine.marker}
        assert stranger.sink().status(OTHER, settled=True).own is None
        with pytest.raises(Fenced):
            stranger.commit(early)
        assert (steps.visible(), steps.marker()) == ([1], mine.marker)

    def test_leftovers_in_a_line_are_of_all_owners_and_say_whose_they_are(self, steps: SinkSteps) -> None:
        """Two owners have staged, under the same attempts; what one aborts is not the other's."""
        only_if(steps, several_owners=False)
        other = replace(steps, owner=OTHER, _tasks=iter(range(100)))
        mine, _ = steps.decided(0, [1]), other.decided(0, [2])
        for asking in (steps, other):
            assert {left.owner for left in asking.sink().leftovers(asking.owner)} == {steps.owner, OTHER}
        steps.sink().abort(steps.owner, other.leftovers())
        assert {left.owner for left in steps.sink().leftovers(OTHER)} == {steps.owner}
        assert steps.commit(mine) is Outcome.COMMITTED
        assert (steps.visible(), list(steps.target.residue())) == ([1], [])

    def test_a_take_over_is_published_once_and_the_line_goes_on(self, steps: SinkSteps) -> None:
        """An empty epoch of the new owner, twice; then its own epochs; the replaced owner's decision can't land."""
        only_if(steps, several_owners=False)
        steps.epoch(0, [1])
        open_decision = steps.decided(1, [9])
        taken = self._take_over(steps, steps.as_(OTHER), number=-1, position=1)
        assert steps.visible() == [1]
        new = replace(steps.as_(OTHER), ledger=taken.by.partition(".")[0], _records=1)
        assert new.marker() == taken
        assert new.sink().status(steps.owner, settled=True).own == open_decision.origin
        new.epoch(0, [2])
        for _ in range(2):
            with pytest.raises(Fenced):
                steps.commit(open_decision)
        steps.sweep()
        assert (steps.visible(), list(steps.target.residue())) == ([1, 2], [])

    def test_a_take_over_is_refused_if_the_line_has_moved_on(self, steps: SinkSteps) -> None:
        """The replaced owner commits one more epoch between the look and the take-over: compare-and-set fails."""
        only_if(steps, several_owners=False)
        steps.epoch(0, [1])
        seen = steps.marker()
        assert seen is not None
        last = steps.epoch(1, [2])
        taken = Marker(OTHER, epoch_of(-1), "new0ledger.1", base=2)
        for _ in range(2):
            with pytest.raises(Fenced):
                steps.sink().take_over(TakeOver(seen, taken))
            assert (steps.visible(), steps.marker()) == ([1, 2], last.marker)

    def test_whoever_may_not_prepare_is_told_before_a_take_over(self, steps: SinkSteps) -> None:
        """A query with other columns, or that replaces everything: it learns what `prepare` would say, and changes nothing."""
        only_if(steps, several_owners=False)
        last = steps.epoch(0, [1])
        new = steps.as_(OTHER)
        asked = list(itertools.product(_schemas(steps), (False, True)))
        told = []
        for schema, overwrite in asked:
            told.append(_refusal(partial(new.sink().require_fit, schema, overwrite=overwrite)))
            assert (steps.visible(), steps.marker()) == ([1], last.marker)
            assert list(steps.target.residue()) == [], f"{schema}: left behind by a question"
        assert _refusal(partial(new.sink().require_fit, None, overwrite=False)) is None, "nothing is known of the rows"
        self._take_over(steps, new, number=-1, position=1)
        for (schema, overwrite), said in zip(asked, told, strict=True):
            refused = _refusal(partial(new.prepare, 0, schema=schema, overwrite=overwrite))
            assert said == refused, f"{schema}, overwrite={overwrite}: require_fit and prepare do not say the same"

    def test_asking_whether_rows_fit_creates_nothing(self, steps: SinkSteps) -> None:
        """Of a target that is not there yet, for columns that it then gets none of."""
        only_if(steps, several_owners=False)
        asked = steps.target.batch([]).schema.append(pa.field(ASKED_FOR, pa.string()))
        _refusal(partial(steps.sink().require_fit, asked, overwrite=False))
        steps.sink().require_fit(None, overwrite=False)
        assert (list(steps.target.read()), list(steps.target.residue()), steps.marker()) == ([], [], None)
        steps.epoch(0, [1])
        assert [ASKED_FOR in row for row in steps.target.read()] == [False]

    def test_a_decision_that_the_line_went_on_without_is_dead_for_its_own_owner(self, steps: SinkSteps) -> None:
        """Taken over, and taken back at the epoch before: what was decided then can never be committed any more."""
        only_if(steps, several_owners=False)
        steps.epoch(0, [1])
        dead = steps.decided(1, [2], [3])
        self._take_over(steps, steps.as_(OTHER), number=-1, position=1)
        taken_back = self._take_over(steps, steps, number=0, position=2)
        assert steps.marker() == taken_back
        with pytest.raises(NotCommitted) as caught:
            steps.commit(dead)
        assert set(caught.value.dead_slots) == {0, 1}
        assert steps.visible() == [1]
        steps.epoch(1, [2], [3])
        assert steps.visible() == [1, 2, 3]

    # ---- names ----

    @pytest.mark.parametrize("kind", HOSTILE_NAMES)
    def test_an_owner_of_any_name_can_write_or_is_refused_at_once(self, steps: SinkSteps, kind: str) -> None:
        """Query and sink are called something hostile: every verb works, or OptionError before anything is staged."""
        name = HOSTILE_NAMES[kind]
        for owner in (Owner(name, "sink"), Owner("query", name), Owner(name, name)):
            hostile = steps.as_(owner)
            try:
                order = hostile.decided(0, [1], [2])
            except OptionError:
                assert (hostile.visible(), list(steps.target.residue())) == ([], [])
                continue
            assert hostile.marks() >= {hostile.sink().mark(share) for share in order.shares}
            hostile.sweep()
            assert (hostile.leftovers(), list(steps.target.residue())) == ([], [])
            if owner.sink == "sink":
                hostile.epoch(0, [1], [2])
                assert hostile.marker() is not None
                assert {m.owner for m in hostile.sink().status(owner, settled=True).markers.values()} == {owner}
                assert hostile.visible() == [1, 2]
                if not hostile.sink().capabilities.several_owners:
                    return

    def test_names_that_only_look_alike_are_different_owners(self, steps: SinkSteps) -> None:
        """Names that a careless join, escape or fold would make one: what each staged is told apart, and deleted apart."""
        owners = [Owner("a/b", "c"), Owner("a", "b/c"), Owner("A/b", "c"), Owner("a%2Fb", "c"), Owner("a.b", "c")]
        queries = [replace(steps, owner=owner, _tasks=iter(range(100))) for owner in owners]
        orders = [query.decided(0, [value]) for value, query in enumerate(queries)]
        for at, (query, order) in enumerate(zip(queries, orders, strict=True)):
            assert query.leftovers()
            query.sweep()
            assert query.leftovers() == []
            assert set(query.sink().alive(order)) == {0}
            for later, its_order in zip(queries[at + 1 :], orders[at + 1 :], strict=True):
                assert later.sink().alive(its_order) == {}
        assert list(steps.target.residue()) == []

    # ---- parts of tests ----

    def _take_over(self, steps: SinkSteps, new: SinkSteps, *, number: int, position: int) -> Marker:
        """`new` takes the line over, twice, as the owner that is at epoch `number` from here on."""
        origin, generation = steps.marker(), new.generation()
        assert origin is not None
        marker = Marker(new.owner, epoch_of(number), str(generation), base=position - number)
        for _ in range(2):
            steps.sink().take_over(TakeOver(origin, marker))
        assert steps.sink().status(new.owner, settled=True).markers == {WHOLE: marker}
        return marker


def _schemas(steps: SinkSteps) -> Iterator[pa.Schema]:
    """Columns that rows may come with: the target's own, others beside them of every type, others in their place, and none."""
    own = steps.target.batch([]).schema
    yield own
    yield from (batch.schema for batch in map(steps.target.typed_batch, ARROW_COLUMNS.values()) if batch is not None)
    yield own.append(pa.field("another", pa.string()))
    yield pa.schema([pa.field("another", pa.string())])
    yield from (pa.schema([pa.field(VALUE, kind)]) for kind in (pa.string(), pa.int32(), pa.bool_()))
    yield pa.schema([])


def _refusal(call: Callable[[], object]) -> type[TwophaseError] | None:
    """The kind of error that a call is refused with."""
    try:
        call()
    except TwophaseError as error:
        return type(error)
    return None
