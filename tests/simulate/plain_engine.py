"""The reference: the same scheduling rules, one step at a time, one request at a time, one block at a time.

Nothing is skipped, summed or inferred here: every block has a number and lies in a list, every request's length is a
field that each step increments. Slow and obvious on purpose; the fast engine must agree with it to the picosecond.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tailrace.simulate.cost import StepCost
from tailrace.simulate.knobs import EngineKnobs


@dataclass(eq=False)
class Plain:
    """One request, as the reference sees it."""

    label: str
    prompt: int
    output: int
    arrival: int
    priority: int = 0
    prefix: tuple[int, ...] = ()
    prefix_tokens: int = 16
    abort_at: int | None = None
    order: int = 0
    computed: int = 0
    generated: int = 0
    shared: list = field(default_factory=list)
    owned: list = field(default_factory=list)
    private: list = field(default_factory=list)
    remains: list = field(default_factory=list)
    remains_full: int = 0
    in_prompt: bool = False
    stamps: list = field(default_factory=list)
    scheduled_at: int | None = None
    cached: int | None = None
    preemptions: int = 0
    outcome: str = ""
    ended_at: int = 0

    @property
    def total(self) -> int:
        return self.prompt + self.generated


@dataclass(eq=False)
class PlainUnit:
    size: int
    blocks: list = field(default_factory=list)
    full: int = 0
    refs: int = 1


class PlainEngine:
    """Run requests to the end with `run`."""

    def __init__(self, knobs: EngineKnobs, cost: StepCost) -> None:
        self.knobs = knobs
        self.cost = cost
        self.queue = list(range(knobs.num_gpu_blocks))
        self.content: dict[int, object] = {}
        """Block -> what it holds, while that can be hit."""
        self.units: dict[int, PlainUnit] = {}
        self.running: list[Plain] = []
        self.waiting: list[Plain] = []
        self.steps = 0
        self.now = 0
        self.tokens_computed = 0
        self.overcommitted = False

    # blocks

    def take(self, count: int) -> list[int]:
        out = []
        for _ in range(count):
            block = self.queue.pop(0)
            self.content.pop(block, None)
            out.append(block)
        return out

    def put(self, blocks: list[int]) -> None:
        self.queue.extend(reversed(blocks))

    def held(self, request: Plain) -> int:
        return sum(n for _, n in request.shared) + sum(len(u.blocks) for u in request.owned) + len(request.private)

    def alive(self, blocks: list[int], tag: object) -> int:
        """The leading blocks that still hold what they held when they were freed."""
        count = 0
        for index, block in enumerate(blocks):
            if self.content.get(block) != (tag, index):
                break
            count += 1
        return count

    def usable(self, unit: PlainUnit) -> int:
        if unit.refs:
            return unit.full
        return min(unit.full, self.alive(unit.blocks, unit))

    def walk(self, request: Plain):
        """(units to hit with their block counts, private blocks to hit, blocks hit, those in the queue)."""
        limit = (request.total - 1) // self.knobs.block_size
        hits = queued = 0
        chain = []
        if not self.knobs.enable_prefix_caching:
            return chain, 0, 0, 0
        for key in self.keys(request):
            unit = self.units.get(key)
            found = min(self.usable(unit), limit - hits) if unit else 0
            if not found:
                return chain, 0, hits, queued
            chain.append((unit, found))
            hits += found
            queued += 0 if unit.refs else found
            if found < unit.size:
                return chain, 0, hits, queued
        own = min(self.alive(request.remains, request), request.remains_full, limit - hits)
        return chain, own, hits + own, queued + own

    def keys(self, request: Plain):
        if request.prefix_tokens % self.knobs.block_size or not self.knobs.enable_prefix_caching:
            return ()
        return request.prefix[: request.prompt // request.prefix_tokens]

    def hold(self, request: Plain) -> int:
        """Take the hits, lay out what the request computes for others; returns the blocks hit."""
        chain, own, hits, _ = self.walk(request)
        keys = self.keys(request)
        stop = False
        for unit, found in chain:
            if unit.refs:
                unit.refs += 1
                request.shared.append((unit, found))
                stop = found < unit.size
                continue
            for block in unit.blocks[:found]:
                self.queue.remove(block)
            for block in unit.blocks[found:]:
                if self.content.get(block, (None, 0))[0] is unit:
                    del self.content[block]
            unit.blocks = unit.blocks[:found]
            unit.full = found
            unit.refs = 1
            request.owned.append(unit)
        if not stop:
            for key in keys[len(chain) :]:
                unit = self.units.get(key)
                if unit and (unit.refs or self.usable(unit)):
                    break
                unit = self.units[key] = PlainUnit(request.prefix_tokens // self.knobs.block_size)
                request.owned.append(unit)
        if own:
            for block in request.remains[:own]:
                self.queue.remove(block)
            request.private = request.remains[:own]
        for block in request.remains[own:]:
            if self.content.get(block, (None, 0))[0] is request:
                del self.content[block]
        request.remains = []
        return hits

    def allocate(self, request: Plain, tokens: int) -> None:
        """Blocks for the first `tokens` tokens; units fill first, in order."""
        size = self.knobs.block_size
        need = -(-tokens // size) - self.held(request)
        for block in self.take(need):
            for unit in request.owned:
                if len(unit.blocks) < unit.size:
                    unit.blocks.append(block)
                    break
            else:
                request.private.append(block)
        before = sum(n for _, n in request.shared)
        for unit in request.owned:
            unit.full = max(unit.full, min(tokens // size - before, unit.size))
            before += unit.size

    def release(self, request: Plain) -> None:
        size = self.knobs.block_size
        first = sum(n for _, n in request.shared) + sum(u.size for u in request.owned)
        request.remains = request.private
        request.remains_full = max(request.computed // size - first, 0)
        for index, block in enumerate(request.private):
            self.content[block] = (request, index)
        self.put(request.private)
        request.private = []
        before = sum(n for _, n in request.shared)
        for unit in request.owned:
            unit.full = min(unit.full, max(request.computed // size - before, 0))
            before += unit.size
        # Shared units are always the leading ones.
        for unit in reversed([u for u, _ in request.shared] + request.owned):
            unit.refs -= 1
            if not unit.refs:
                for index, block in enumerate(unit.blocks):
                    self.content[block] = (unit, index)
                self.put(unit.blocks)
        request.shared = []
        request.owned = []

    # scheduling

    def preempt(self, victim: Plain) -> None:
        self.running.remove(victim)
        self.release(victim)
        victim.computed = 0
        victim.preemptions += 1
        self.waiting.insert(0, victim)

    def schedule(self):
        knobs = self.knobs
        budget = knobs.max_num_batched_tokens
        limit = knobs.long_prefill_token_threshold if knobs.enable_chunked_prefill else 0
        granted: dict[Plain, int] = {}
        preempted = False
        i = 0
        while i < len(self.running) and budget > 0:
            request = self.running[i]
            tokens = request.total - request.computed
            if 0 < limit < tokens:
                tokens = limit
            tokens = min(tokens, budget)
            ok = True
            while -(-(request.computed + tokens) // knobs.block_size) - self.held(request) > len(self.queue):
                preempted = True
                if knobs.policy == "priority":
                    victim = max(self.running, key=lambda r: (r.priority, r.arrival, r.order))
                else:
                    victim = self.running[-1]
                if victim in granted:
                    budget += granted.pop(victim)
                    i -= 1
                self.preempt(victim)
                if victim is request:
                    ok = False
                    break
            if not ok:
                break
            self.allocate(request, request.computed + tokens)
            granted[request] = tokens
            budget -= tokens
            i += 1
        prompts = any(self.is_prompt(r) for r in granted)
        while not preempted and self.waiting and budget > 0 and len(self.running) < knobs.max_num_seqs:
            if knobs.policy == "priority":
                self.waiting.sort(key=lambda r: (r.priority, r.arrival, r.order))
            request = self.waiting[0]
            _, _, hits, queued = self.walk(request)
            tokens = request.total - hits * knobs.block_size
            if 0 < limit < tokens:
                tokens = limit
            if tokens > budget:
                if knobs.enable_chunked_prefill:
                    tokens = budget
                elif prompts:
                    break
            if -(-request.total // knobs.block_size) - hits + queued > len(self.queue):
                break
            self.waiting.pop(0)
            self.hold(request)
            request.computed = hits * knobs.block_size
            self.allocate(request, request.computed + tokens)
            self.running.append(request)
            if request.scheduled_at is None:
                request.scheduled_at = self.now
                request.cached = request.computed
            granted[request] = tokens
            request.in_prompt = True
            prompts = True
            budget -= tokens
        return granted

    def is_prompt(self, request: Plain) -> bool:
        return request.in_prompt

    # time

    def run(self, requests: list[Plain], changes=()) -> None:
        future = sorted(requests, key=lambda r: r.arrival)
        for order, request in enumerate(future):
            request.order = order
        changes = list(changes)
        while True:
            while changes and changes[0][0] <= self.now:
                self.change(changes.pop(0)[1])
            if not self.running and not self.waiting:
                if not future and not changes:
                    return
                events = [r.arrival for r in future[:1]] + [at for at, _ in changes[:1]]
                if min(events) > self.now:
                    self.now = min(events)
                    continue
            while future and future[0].arrival <= self.now:
                request = future.pop(0)
                if request.prompt + request.output > min(
                    self.knobs.max_model_len, self.knobs.num_gpu_blocks * self.knobs.block_size
                ):
                    request.outcome = "refused"
                    request.ended_at = request.arrival
                    continue
                self.waiting.append(request)
            here = [*self.waiting, *self.running]
            leaving = [r for r in here if r.abort_at is not None and r.abort_at <= self.now]
            for request in sorted(leaving, key=lambda r: (r.abort_at, r.order)):
                self.leave(request)
            if self.running or self.waiting:
                self.one_step()

    def change(self, knobs: EngineKnobs) -> None:
        if "priority" in (knobs.policy, self.knobs.policy):
            self.waiting.sort(key=lambda r: (r.priority, r.arrival, r.order))
        self.knobs = knobs

    def leave(self, request: Plain) -> None:
        if request in self.waiting:
            self.waiting.remove(request)
        else:
            self.running.remove(request)
            self.release(request)
        request.outcome = "aborted"
        request.ended_at = request.abort_at

    def one_step(self) -> None:
        granted = self.schedule()
        chunks = []
        decodes = context = 0
        for request in self.running:
            tokens = granted.get(request)
            if tokens is None:
                continue
            self.tokens_computed += tokens
            if self.is_prompt(request):
                chunks.append((tokens, request.computed))
            else:
                decodes += 1
                context += request.computed + 1
        self.now += self.cost.step_ps(decodes, context, chunks)
        self.steps += 1
        finished = []
        for request in list(self.running):
            if request not in granted:
                continue
            request.computed += granted[request]
            if request.computed == request.total:
                request.generated += 1
                request.in_prompt = False
                request.stamps.append(self.now)
                if request.generated == request.output:
                    finished.append(request)
        for request in finished:
            self.running.remove(request)
            self.release(request)
            if request.abort_at is not None and request.abort_at < self.now:
                request.outcome = "aborted"
                request.ended_at = request.abort_at
            else:
                request.outcome = "finished"
                request.ended_at = self.now
