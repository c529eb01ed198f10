"""The engine: continuous batching as vLLM V1 schedules it, one step (or one run of equal steps) at a time.

There is no prefill phase and no decode phase: each step, every running request catches up to the length it has
reached, within the step's token budget; then waiting requests are admitted. The rules, in the order in which they
apply, are those of vLLM V1's scheduler:

1. running requests first, in order of admission;
2. one that cannot get a KV block preempts: the last of the running list (priority: the least urgent). The victim loses
   its blocks, goes back to the head of the queue and starts again by recomputing; it may hit its own old blocks;
3. nobody is admitted in a step that preempted;
4. waiting requests are admitted while budget and `max_num_seqs` last; the first that does not fit stops it;
5. admission needs free blocks for the whole prompt (on resume: and for what was generated), less what it hits.

Decoding requests advance together and are not touched one by one (`cohort`). Only a step that lacks blocks or budget
walks the running list in order (`_schedule_in_order`).

Sans-IO: the caller owns the clock. `plan()` decides the next step and says when it ends, `commit()` ends it.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from tailrace.simulate.cohort import Cohort
from tailrace.simulate.cost import StepCost
from tailrace.simulate.counters import EngineCounters
from tailrace.simulate.knobs import EngineKnobs
from tailrace.simulate.kv_cache import KvCache
from tailrace.simulate.request import SimRequest, State
from tailrace.simulate.series import blocks_for, length_of, steps_to, steps_within
from tailrace.simulate.step_log import StepLog
from tailrace.simulate.waiting import ByPriority, FirstCome, WaitingQueue

_WAITING, _PREFILL, _DECODE = State.WAITING, State.PREFILL, State.DECODE


class Engine:
    """One engine. All times are integer picoseconds.

    Drive it with `submit` and `abort` (times never before an earlier call's), then alternate `plan` and `commit`.
    `plan(skip=True)` joins a run of pure decode steps into one, up to the next arrival, finish or block shortage, with
    exactly the same result.
    """

    def __init__(self, knobs: EngineKnobs, cost: StepCost, *, keep_steps: bool = True) -> None:
        self.knobs = knobs
        self.cost = cost
        self.now = 0
        """The last step boundary."""
        self.step = 0
        """Steps done."""
        self.kv = KvCache(knobs.num_gpu_blocks, knobs.block_size, sharing=knobs.enable_prefix_caching)
        self.counters = EngineCounters()
        self.log = StepLog(enabled=keep_steps)
        self.ended: list[SimRequest] = []
        """Requests that finished, were aborted or refused since the caller last cleared the list."""
        self.started: list[SimRequest] | None = None
        """A caller that wants to know puts a list here: requests whose first token came out are appended."""
        self._waiting: WaitingQueue = ByPriority() if knobs.policy == "priority" else FirstCome()
        self._running: dict[SimRequest, None] = {}
        self._arrivals: deque[SimRequest] = deque()
        self._aborts: list[tuple[int, int, SimRequest]] = []
        self._partial: list[SimRequest] = []
        """Running requests that are still in prefill, in order of admission."""
        self.cohort = Cohort(knobs.block_size)
        """Running requests that decode."""
        self._seq = 0
        self._orders = 0
        self._tickets = 0
        # The planned step.
        self._chunks: list[tuple[SimRequest, int]] = []
        self._starved: list[SimRequest] = []
        self.planned_steps = 0
        """How many steps the planned run has."""
        self._first = self._rise = self._end = 0

    # -- what the caller may ask

    @property
    def running(self) -> int:
        """Requests in the batch."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Requests that wait, preempted ones included, those that arrive in the future not."""
        return self._waiting.count

    @property
    def kv_usage(self) -> float:
        """Share of KV blocks in use, 0..1; cached blocks of nobody count as free."""
        return self.kv.usage

    @property
    def step_end(self) -> int:
        """When the planned step ends."""
        return self._end

    @property
    def next_start(self) -> int | None:
        """When the next step begins: at once, or with the next arrival; `None` where nothing is to be done."""
        if self.running or self.waiting:
            return self.now
        return max(self.now, self._arrivals[0].arrival) if self._arrivals else None

    def decoding_prompts(self) -> int:
        """Prompt tokens of the requests that decode, together."""
        return sum(request.prompt for request in self._running if request.state == _DECODE)

    def fits(self, prompt: int, output: int) -> bool:
        """Can a request of these lengths ever be served?"""
        return prompt + output <= min(self.knobs.max_model_len, self.knobs.kv_tokens)

    def emitting(self) -> list[SimRequest]:
        """Who gets a token when the planned step ends, in order of admission."""
        starved = set(self._starved)
        done = {request for request, chunk in self._chunks if request.computed + chunk == request.target}
        return [r for r in self._running if (r.state == _DECODE and r not in starved) or r in done]

    def oldest_token_step(self) -> int:
        """The earliest step in which a request that has not ended got a token; later steps are still needed."""
        live = [r.first_step for r in self._running if r.first_step]
        live += [r.first_step for r in self._waiting if r.first_step]
        return min(live, default=self.step + 1)

    def planned_tokens(self) -> int:
        """Tokens computed in (each step of) the planned step."""
        return self.cohort.count - len(self._starved) + sum(chunk for _, chunk in self._chunks)

    # -- what the caller may do

    def submit(self, request: SimRequest) -> None:
        """A request arrives at `request.arrival`; arrivals are submitted in order of time."""
        if self._arrivals and self._arrivals[-1].arrival > request.arrival:
            raise ValueError("arrivals must be submitted in order of time")
        self._arrivals.append(request)
        if request.abort_at is not None:
            self._expect_abort(request, request.abort_at)

    def abort(self, request: SimRequest, at: int) -> None:
        """The client leaves at `at`; the engine notices at the next step boundary."""
        if request.abort_at is None or at < request.abort_at:
            request.abort_at = at
            self._expect_abort(request, at)

    def set_knobs(self, knobs: EngineKnobs) -> None:
        """Change the knobs; a step that is planned already keeps those under which it was planned.

        Raises:
            ValueError: a knob that sizes memory is not the same.
        """
        if knobs.num_gpu_blocks != self.kv.total or knobs.block_size != self.knobs.block_size:
            raise ValueError("the KV cache cannot change its size while the engine runs")
        if knobs.policy != self.knobs.policy:
            queue: WaitingQueue = ByPriority() if knobs.policy == "priority" else FirstCome()
            while (request := self._waiting.head()) is not None:
                self._waiting.pop()
                queue.push(request)
            self._waiting = queue
        self.knobs = knobs
        self.kv.sharing = knobs.enable_prefix_caching

    def plan(self, *, skip: bool = False, until: int | None = None) -> int | None:
        """Decide the next step; returns when it ends, or `None` when there is nothing to do.

        With `skip`, a run of pure decode steps counts as one; it ends at the first boundary at or after `until`.
        An idle engine does not wait for an arrival at or after `until`.
        """
        if not self._ingest(until):
            return None
        if (
            self._partial
            or self._waiting.count
            or self.cohort.count > self.knobs.max_num_batched_tokens
            or self.cohort.growth(self.step) > self.kv.free
        ) and self._schedule():
            self._plan_step()
        else:
            self._plan_decodes(skip=skip, until=until)
        return self._end

    def commit(self) -> None:
        """End the planned step: tokens come out, requests finish; `now` and `step` advance."""
        count = self.planned_steps
        chunks = self._chunks
        end = self._end
        step = self.step + count
        counters = self.counters
        if self.log.enabled:
            self.log.add(self.step, self.now, self._first, self._rise, count)
        tokens = self.cohort.count - len(self._starved)
        counters.generation_tokens += tokens * count
        for _, chunk in chunks:
            tokens += chunk
        counters.iteration_tokens[tokens] = counters.iteration_tokens.get(tokens, 0) + count
        counters.busy_ps += end - self.now
        self.step = step
        self.now = end
        if self._starved:
            for request in self._starved:
                self.cohort.starve(request, step)
            self._starved = []
        done = self._commit_chunks(step, end) if chunks else []
        done += self.cohort.finished(step)
        if done:
            if len(done) > 1:
                done.sort(key=_by_seq)
            for request in done:
                self._finish(request, end)

    def advance(self, until: int | None = None) -> None:
        """Run in virtual time until everything is done, or the first step boundary at or after `until`."""
        while until is None or self.now < until:
            if self.plan(skip=True, until=until) is None:
                return
            self.commit()

    # -- arrivals, aborts, knobs

    def _expect_abort(self, request: SimRequest, at: int) -> None:
        self._tickets += 1
        heappush(self._aborts, (at, self._tickets, request))

    def _ingest(self, until: int | None) -> bool:
        """Take in what has happened up to the boundary; jump over idle time. False: nothing to do (until then)."""
        arrivals = self._arrivals
        aborts = self._aborts
        waiting = self._waiting
        while True:
            if not self._running and not waiting.count:
                if arrivals:
                    if until is not None and arrivals[0].arrival >= until > self.now:
                        self.now = until
                        return False
                    self.now = max(self.now, arrivals[0].arrival)
                elif not aborts:
                    return False
                else:
                    # Only departures of requests that have already ended are left.
                    self._leave(max(self.now, aborts[0][0]))
                    continue
            now = self.now
            while arrivals and arrivals[0].arrival <= now:
                self._arrive(arrivals.popleft())
            if aborts and aborts[0][0] <= now:
                self._leave(now)
            if self._running or waiting.count:
                return True

    def _arrive(self, request: SimRequest) -> None:
        self.counters.arrived += 1
        self._orders += 1
        request.order = self._orders
        request.running_at_arrival = len(self._running)
        request.waiting_at_arrival = self._waiting.count
        request.kv_at_arrival = self.kv.usage
        if request.prompt < 1 or request.output < 1 or not self.fits(request.prompt, request.output):
            request.state = State.REFUSED
            request.ended_at = request.arrival
            self.counters.refused += 1
            self.ended.append(request)
            return
        request.state = _WAITING
        self._waiting.push(request)

    def _leave(self, now: int) -> None:
        aborts = self._aborts
        while aborts and aborts[0][0] <= now:
            request = heappop(aborts)[2]
            state = request.state
            if state == State.NEW:
                # It leaves in the very moment of its arrival, which is still to be taken in.
                if request.arrival > now:
                    raise ValueError("a request cannot leave before it arrives")
                self._arrivals.remove(request)
                self._arrive(request)
                state = request.state
            if state == _WAITING:
                self._waiting.count -= 1
            elif state in (_PREFILL, _DECODE):
                self._leave_batch(request)
            else:
                continue
            self._end_aborted(request)

    def _end_aborted(self, request: SimRequest) -> None:
        request.state = State.ABORTED
        request.ended_at = request.abort_at if request.abort_at is not None else self.now
        self.counters.aborted += 1
        self.ended.append(request)

    # -- scheduling

    def _schedule(self) -> bool:  # noqa: C901, PLR0912  (one pass of the scheduler's loop)
        """Rules 1 to 5, without a look at each decode where nobody lacks anything.

        True: chunks and blocks of one step are decided. False: a pure decode step, of which nothing is decided yet.
        """
        knobs = self.knobs
        size = knobs.block_size
        left = knobs.max_num_batched_tokens - self.cohort.count
        needed = self.cohort.growth(self.step)
        if left < 0 or needed > self.kv.free:
            return self._schedule_in_order()
        partial = self._partial
        if partial:
            chunks = self._chunks
            limit = knobs.long_prefill_token_threshold if knobs.enable_chunked_prefill else 0
            for request in partial:
                computed = request.computed
                chunk = request.target - computed
                if 0 < limit < chunk:
                    chunk = limit
                if chunk > left:
                    # The budget ends here: exact without a walk only if nobody stands behind.
                    if left == 0 or request is not next(reversed(self._running)):
                        chunks.clear()
                        return self._schedule_in_order()
                    chunk = left
                left -= chunk
                needed += (computed + chunk + size - 1) // size - (computed + size - 1) // size
                chunks.append((request, chunk))
            if needed > self.kv.free:
                chunks.clear()
                return self._schedule_in_order()
            self.kv.take(needed)
            for request, chunk in chunks:
                if request.owns:
                    self.kv.cover(request, request.computed + chunk)
        elif left and self._admissible(needed):
            if needed:
                self.kv.take(needed)
        else:
            return False
        if left:
            self._admit(left)
        return True

    def _schedule_in_order(self) -> bool:  # noqa: C901, PLR0912  (one pass of the scheduler's loop)
        """The same rules by a walk over the running list, for a step in which blocks or budget do not suffice."""
        knobs = self.knobs
        size = knobs.block_size
        kv = self.kv
        budget = knobs.max_num_batched_tokens
        limit = knobs.long_prefill_token_threshold if knobs.enable_chunked_prefill else 0
        order = list(self._running)
        granted: dict[SimRequest, int] = {}
        preempted = False
        i = 0
        while i < len(order) and budget > 0:
            request = order[i]
            if request.state == _DECODE:
                computed = self.step + request.base
                chunk = 1
            else:
                computed = request.computed
                chunk = request.target - computed
                if 0 < limit < chunk:
                    chunk = limit
                chunk = min(chunk, budget)
            needed = (computed + chunk + size - 1) // size - (computed + size - 1) // size
            while needed > kv.free:
                preempted = True
                victim = order[-1] if knobs.policy == "fcfs" else max(order, key=_by_urgency)
                place = order.index(victim)
                del order[place]
                tokens = granted.pop(victim, 0)
                if tokens:
                    budget += tokens
                    i -= 1
                self._preempt(victim, tokens)
                if victim is request:
                    break
            else:
                kv.take(needed)
                if request.owns:
                    self.kv.cover(request, computed + chunk)
                granted[request] = chunk
                budget -= chunk
                i += 1
                continue
            break
        for request in order:
            given = granted.get(request)
            if request.state == _PREFILL:
                if given is not None:
                    self._chunks.append((request, given))
            elif given is None:
                self._starved.append(request)
        if not preempted and budget > 0:
            self._admit(budget)
        return True

    def _admissible(self, growth: int) -> bool:
        """Would the head of the queue be admitted in a step whose decodes take `growth` blocks?"""
        knobs = self.knobs
        if len(self._running) >= knobs.max_num_seqs:
            return False
        request = self._waiting.head()
        if request is None:
            return False
        size = knobs.block_size
        total = request.prompt + request.generated
        whole = (total + size - 1) // size
        free = self.kv.free - growth
        if whole <= free:
            return True
        # Only blocks that somebody holds now are certain to be hit after the step's decodes have taken theirs.
        hits, queued = self.kv.hits(request, total)
        return whole - hits + queued <= free

    def _admit(self, left: int) -> None:  # noqa: C901  (one pass of the scheduler's loop)
        """Rules 4 and 5 with a budget of `left` tokens."""
        knobs = self.knobs
        size = knobs.block_size
        chunked = knobs.enable_chunked_prefill
        limit = knobs.long_prefill_token_threshold if chunked else 0
        kv = self.kv
        waiting = self._waiting
        running = self._running
        chunks = self._chunks
        while left > 0 and len(running) < knobs.max_num_seqs:
            request = waiting.head()
            if request is None:
                return
            total = request.prompt + request.generated
            hits = queued = 0
            if request.prefix or request.run_count:
                hits, queued = self.kv.hits(request, total)
            chunk = total - hits * size
            if 0 < limit < chunk:
                chunk = limit
            if chunk > left:
                if chunked:
                    chunk = left
                elif chunks:
                    return
            if (total + size - 1) // size - hits + queued > kv.free:
                return
            waiting.pop()
            if hits or request.prefix:
                self.kv.hold(request, hits)
            request.run_count = 0
            computed = hits * size
            kv.take((computed + chunk + size - 1) // size - hits)
            request.computed = computed
            request.target = total
            if request.owns:
                self.kv.cover(request, computed + chunk)
            self._seq += 1
            request.seq = self._seq
            request.state = _PREFILL
            running[request] = None
            if request.scheduled_at is None:
                self._count_first(request, computed)
            chunks.append((request, chunk))
            left -= chunk

    def _count_first(self, request: SimRequest, cached: int) -> None:
        request.scheduled_at = self.now
        request.cached = cached
        counters = self.counters
        counters.scheduled += 1
        counters.queue_ps += self.now - request.arrival
        counters.prompt_tokens += request.prompt
        if self.knobs.enable_prefix_caching:
            counters.prefix_query_tokens += request.prompt
            counters.prefix_hit_tokens += cached

    # -- joining and leaving the batch

    def _leave_batch(self, request: SimRequest, unused: int = 0) -> None:
        """Out of the running list, with its blocks. `unused`: tokens granted in the step being planned."""
        del self._running[request]
        if request.state == _DECODE:
            computed = self.cohort.leave(request, self.step)
        else:
            computed = request.computed
            if request in self._partial:
                self._partial.remove(request)
        self.kv.give_back(request, computed, computed + unused)

    def _preempt(self, request: SimRequest, unused: int) -> None:
        self._leave_batch(request, unused)
        request.state = _WAITING
        request.preemptions += 1
        self.counters.preemptions += 1
        self._waiting.push_back(request)

    def _finish(self, request: SimRequest, end: int) -> None:
        self._leave_batch(request)
        if request.abort_at is not None and request.abort_at < end:
            self._end_aborted(request)
            return
        request.state = State.FINISHED
        request.ended_at = end
        self.counters.finished += 1
        self.ended.append(request)

    def _commit_chunks(self, step: int, end: int) -> list[SimRequest]:
        """Prompts advance; those that are complete bring a token and join the decodes. Returns those that are done."""
        partial = self._partial
        done: list[SimRequest] = []
        for request, chunk in self._chunks:
            request.computed += chunk
            if request.computed < request.target:
                if request not in partial:
                    partial.append(request)
                continue
            if partial and request in partial:
                partial.remove(request)
            self.counters.generation_tokens += 1
            request.generated += 1
            if request.first_at is None:
                request.first_at = end
                request.first_step = step
                request.running_at_first = len(self._running)
                request.waiting_at_first = self._waiting.count
                request.kv_at_first = self.kv.usage
                if self.started is not None:
                    self.started.append(request)
            if self.cohort.join(request, step):
                done.append(request)
        self._chunks = []
        return done

    # -- the length of the step

    def _plan_step(self) -> None:
        """One step, whose chunks and blocks are decided."""
        starved = self._starved
        decodes = self.cohort.count
        context = self.cohort.context(self.step)
        if starved:
            decodes -= len(starved)
            context -= sum(request.base + self.step + 1 for request in starved)
        chunks = [(chunk, request.computed) for request, chunk in self._chunks]
        self.planned_steps = 1
        self._rise = 0
        self._first = self.cost.step_ps(decodes, context, chunks)
        self._end = self.now + self._first

    def _plan_decodes(self, *, skip: bool, until: int | None) -> None:
        """A pure decode step, or a run of them up to the next event, finish or block shortage."""
        cohort = self.cohort
        decodes = cohort.count
        now = self.now
        context = cohort.context(self.step)
        per_token = self.cost.ctx_ps
        if per_token is None or not skip:
            self.planned_steps = 1
            self._rise = 0
            self._first = self.cost.step_ps(decodes, context, ())
            self._end = now + self._first
            self.kv.take(cohort.growth(self.step))
            return
        first = self.cost.decode_ps(decodes) + per_token * context
        rise = per_token * decodes
        count = cohort.next_finish() - self.step
        grow = cohort.grow
        phase = self.step % cohort.size
        needed = blocks_for(grow, phase, count)
        if needed > self.kv.free:
            # The first step fits (else we were not here); stop before the first that does not.
            count = steps_within(grow, phase, self.kv.free)
            needed = blocks_for(grow, phase, count)
        length = length_of(count, first, rise)
        until = self._next_event(until)
        if until is not None and now + length > until:
            count = steps_to(until - now, first, rise)
            length = length_of(count, first, rise)
            needed = blocks_for(grow, phase, count)
        if needed:
            self.kv.take(needed)
        self.planned_steps = count
        self._first = first
        self._rise = rise
        self._end = now + length

    def _next_event(self, until: int | None) -> int | None:
        """When something from outside happens next: an arrival, a departure, the caller's own limit."""
        if self._arrivals and (until is None or self._arrivals[0].arrival < until):
            until = self._arrivals[0].arrival
        if self._aborts and (until is None or self._aborts[0][0] < until):
            until = self._aborts[0][0]
        return until


def _by_seq(request: SimRequest) -> int:
    return request.seq


def _by_urgency(request: SimRequest) -> tuple[int, int, int]:
    return request.priority, request.arrival, request.order
