"""The index against a list of everything that was ever published: what it serves is right, and bounded."""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from phyla.kv import Layout
from phyla.kv.prefix import Hit, PrefixIndex, PrefixNamespace, Published, plan_boundaries
from phyla.kv.prefix.publishing import boundary_here
from phyla.kv.prefix.retention import retention_named
from phyla.kv.row_state import RowState
from phyla.testing.bits import assert_close

from tests.core.kv.prefix.rows import HERE, LAYOUTS, computed, empty_row, extend, next_outputs

THERE = PrefixNamespace("m", "plain", "i", owner="somebody else")
prompts = st.lists(st.integers(0, 2), min_size=1, max_size=14)
namespaces = st.sampled_from([HERE, THERE])
sessions = st.sampled_from([None, "chat", "other chat"])


@dataclass
class Known:
    """What the naive model remembers of one publication."""

    namespace: PrefixNamespace
    ids: list[int]
    lengths: set[int] = field(default_factory=set)


class IndexMachine(RuleBasedStateMachine):
    """Conversations with edits, forks, truncations, evictions and sessions, over one layer kind."""

    @initialize(kind=st.sampled_from(sorted(LAYOUTS)), policy=st.sampled_from(["lru", "cost-size"]))
    def begin(self, kind: str, policy: str) -> None:
        self.kind = kind
        self.layout: Layout = LAYOUTS[kind]
        self.index = PrefixIndex(1 << 30, retention_named(policy), max_boundaries=1000)
        self.known: list[Known] = []
        self.lost_some = False
        self.hits: list[tuple[Hit, list[int]]] = []

    @rule(prompt=prompts, split=st.integers(0, 14), where=namespaces, session=sessions, finished=st.booleans())
    def publish(
        self, prompt: list[int], split: int, where: PrefixNamespace, session: str | None, finished: bool
    ) -> None:
        self._publish(prompt, split, where, session, finished)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), more=prompts, split=st.integers(0, 14), session=sessions)
    def publish_a_next_turn(self, data: st.DataObject, more: list[int], split: int, session: str | None) -> None:
        known = data.draw(st.sampled_from(self.known))
        cut = data.draw(st.integers(0, len(known.ids)))
        self._publish([*known.ids[:cut], *more][:24], split, known.namespace, session, finished=True)

    @rule(prompt=prompts, where=namespaces, session=sessions)
    def look_up(self, prompt: list[int], where: PrefixNamespace, session: str | None) -> None:
        self._look_up(prompt, where, session)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), more=prompts, session=sessions)
    def look_up_a_next_turn(self, data: st.DataObject, more: list[int], session: str | None) -> None:
        known = data.draw(st.sampled_from(self.known))
        cut = data.draw(st.integers(0, len(known.ids)))
        self._look_up([*known.ids[:cut], *more], known.namespace, session)

    @precondition(lambda self: self.hits)
    @rule()
    def take_an_earlier_hit(self) -> None:
        hit, prompt = self.hits.pop()
        with hit:
            row = hit.row()
        self._assert_right(row, prompt[: hit.num_tokens])

    @rule(share=st.sampled_from([2, 4]))
    def run_short_of_memory(self, share: int) -> None:
        self.lost_some |= self.index.reclaim(self.index.num_bytes // share) > 0

    @rule(budget=st.integers(0, 3000))
    def live_under_a_budget(self, budget: int) -> None:
        self.index.budget_bytes = self.index.num_bytes + budget
        self.lost_some = True

    @rule(session=st.sampled_from(["chat", "other chat"]), where=namespaces)
    def close_a_session(self, session: str, where: PrefixNamespace) -> None:
        self.index.close_session(session, where.owner)
        assert not self.index.close_session(session, where.owner)

    @rule()
    def clear(self) -> None:
        self.index.clear()
        self.known.clear()
        assert self.index.num_bytes == 0

    @invariant()
    def bytes_are_the_sum_of_the_entries_and_within_the_budget(self) -> None:
        if hasattr(self, "index"):
            assert self.index.num_bytes == sum(entry.num_bytes for entry in self.index.entries())
            assert self.hits or self.index.num_bytes <= self.index.budget_bytes

    def teardown(self) -> None:
        for hit, _ in getattr(self, "hits", []):
            hit.release()

    def _publish(
        self, prompt: list[int], split: int, where: PrefixNamespace, session: str | None, finished: bool
    ) -> None:
        planned = plan_boundaries(num_cached=0, num_prompt=len(prompt), stable_boundary=min(split, len(prompt) - 1))
        row, boundaries = empty_row(self.layout), []
        for length, kind in planned:
            extend(row, self.layout, prompt[row.num_tokens : length])
            boundaries.append(boundary_here(row, kind))
        extend(row, self.layout, prompt[row.num_tokens :])
        offer = Published(row, has_finished=finished, boundaries=boundaries, session_id=session)
        self.index.publish(where, offer)
        lengths = {len(prompt), *(length for length, _ in planned)}
        if self.kind in ("full", "latent"):
            lengths = set(range(1, len(prompt) + 1))
        self.known.append(Known(where, prompt, lengths))

    def _look_up(self, prompt: list[int], where: PrefixNamespace, session: str | None) -> None:
        found = self.index.lookup(where, prompt, session_id=session)
        best = max((self._best_of(known, prompt) for known in self.known if known.namespace == where), default=0)
        longest = max((shared(known.ids, prompt) for known in self.known if known.namespace == where), default=0)
        assert found.num_reused <= found.num_matched <= min(longest, len(prompt) - 1)
        assert self.lost_some or found.num_reused >= best
        if found.hit is not None:
            assert found.hit.num_tokens > 0
            self.hits.append((found.hit, prompt))
            self._assert_right(found.hit.row(), prompt[: found.num_reused])

    def _best_of(self, known: Known, prompt: list[int]) -> int:
        usable = min(shared(known.ids, prompt), len(prompt) - 1)
        return max((length for length in known.lengths if length <= usable), default=0)

    def _assert_right(self, row: RowState, ids: list[int]) -> None:
        assert row.tokens == ids
        assert [state.num_tokens for state in row.sets["target"]] == [len(ids)] * len(self.layout)
        for got, want in zip(
            next_outputs(row, self.layout), next_outputs(computed(self.layout, ids), self.layout), strict=True
        ):
            assert_close(got, want, atol=2e-5, why="columns in another order")


def shared(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


IndexMachine.TestCase.settings = settings(
    max_examples=250, stateful_step_count=25, deadline=None, derandomize=True, print_blob=True
)
TestIndexMachine = IndexMachine.TestCase
