"""Fair turns between tenants: deficit round robin by tokens, with weights.

Each tenant has an account of what it was served, in tokens divided by its weight; whoever has the least is next. That
is deficit round robin with a quantum of one token, whose rounds are computed instead of walked: a turn costs the
logarithm of the number of tenants that wait, whatever their requests' sizes, and within any stretch in which two
tenants both wait, what they were served differs from their weights by less than one request of each (Shreedhar and
Varghese, 1995; Waldspurger and Weihl, 1995).

What is charged at the start of a request is predicted; `correct` puts it right when its real length is known.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final

FORGET_NS: Final = 10_000_000_000
"""How long nobody may have waited before debts are void: who was served much in a rush ten seconds ago owes nobody."""
REMEMBERED: Final = 4096
"""Tenants that wait for nothing and are still remembered for what they were served; the least indebted go first."""


class _Account:
    __slots__ = ("served", "waiting", "weight")

    def __init__(self, served: float, weight: float) -> None:
        self.served = served
        self.weight = weight
        self.waiting = 0


class FairTurns:
    """Whose turn it is. A tenant is named when it has a request waiting, and again for each more."""

    def __init__(self, weights: Mapping[str, float]) -> None:
        self._weights = weights
        self._accounts: dict[str, _Account] = {}
        self._turns: list[tuple[float, int, str]] = []
        """Heap of (served, number, tenant). An entry is good while it says what the account says."""
        self._debts: list[tuple[float, int, str]] = []
        """The same, of those who wait for nothing."""
        self._sole: str | None = None
        """The tenant that waits, where it is the only one: then there are no turns to take, and no heap of them."""
        self._number = 0
        self._now = 0.0
        """What whoever is next has been served: nobody who comes anew is credited with less."""
        self._active = 0
        self._weight = 0.0
        self._empty_since: int | None = None

    def weight_of(self, tenant: str) -> float:
        """Its weight, 1 unless configured."""
        return self._weights.get(tenant, 1.0)

    @property
    def active(self) -> int:
        """Tenants that wait."""
        return self._active

    @property
    def rivals_weight(self) -> float:
        """The sum of the weights of those who wait."""
        return self._weight

    def enter(self, tenant: str, now: int) -> None:
        """One more request of it waits."""
        account = self._accounts.get(tenant)
        if self._active == 0 and self._empty_since is not None and now - self._empty_since > FORGET_NS:
            self._accounts.clear()
            self._turns.clear()
            self._debts.clear()
            account = None
        if account is None:
            account = self._accounts[tenant] = _Account(self._now, self.weight_of(tenant))
        account.waiting += 1
        if account.waiting == 1:
            account.served = max(account.served, self._now)
            self._active += 1
            self._weight += account.weight
            if self._active == 1:
                self._sole = tenant
            else:
                sole, self._sole = self._sole, None
                if sole is not None:
                    self._schedule(sole, self._accounts[sole])
                self._schedule(tenant, account)

    def leave(self, tenant: str, now: int) -> None:
        """One request fewer of it waits."""
        account = self._accounts[tenant]
        account.waiting -= 1
        if not account.waiting:
            self._active -= 1
            self._weight -= account.weight
            if not self._active:
                self._weight = 0.0
                self._empty_since = now
                self._sole = None
            elif self._active == 1:
                self._sole = self._least()
            self._owe(tenant, account)

    def next(self) -> str | None:
        """The tenant that was served least, of those who wait."""
        tenant = self._least() if self._sole is None else self._sole
        if tenant is not None:
            self._now = max(self._now, self._accounts[tenant].served)
        return tenant

    def _least(self) -> str | None:
        turns = self._turns
        while turns:
            served, _, tenant = turns[0]
            account = self._accounts.get(tenant)
            if account is not None and account.waiting and account.served == served:
                return tenant
            heapq.heappop(turns)
        return None

    def charge(self, tenant: str, tokens: float) -> None:
        """It is served this much; negative where it had been charged too much."""
        account = self._accounts.get(tenant)
        if account is None:
            return
        # A correction gives back at most down to where everybody is: it is no credit to save up.
        account.served = max(account.served + tokens / account.weight, min(account.served, self._now))
        if not account.waiting:
            self._owe(tenant, account)
        elif self._sole is None:
            self._schedule(tenant, account)

    def _owe(self, tenant: str, account: _Account) -> None:
        self._number += 1
        heapq.heappush(self._debts, (account.served, self._number, tenant))
        self._forget()

    def _schedule(self, tenant: str, account: _Account) -> None:
        self._number += 1
        heapq.heappush(self._turns, (account.served, self._number, tenant))
        if len(self._turns) > 4 * self._active + 64:
            self._turns = [
                (account.served, number, name)
                for number, (name, account) in enumerate(self._accounts.items(), self._number + 1)
                if account.waiting
            ]
            self._number += len(self._turns)
            heapq.heapify(self._turns)

    def _forget(self) -> None:
        """Drop accounts of those who wait for nothing: the debt is paid when the others have caught up."""
        debts = self._debts
        while debts and (debts[0][0] <= self._now or len(debts) > REMEMBERED):
            served, _, tenant = heapq.heappop(debts)
            account = self._accounts.get(tenant)
            if account is not None and not account.waiting and account.served <= max(served, self._now):
                del self._accounts[tenant]
