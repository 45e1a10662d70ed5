"""Broken rules of reads from several queues."""

from __future__ import annotations

from typing import Any

from staniel.broker.several_queues import WaitAtSeveral, WaitingPlace
from staniel.queues.item import Delivery
from staniel.sim.mutants.queues import MUTANTS, mutant, replaced

__all__ = ["MUTANTS"]


@mutant("a client with an item of one queue goes on waiting at the others", "hub-several")
def waits_on() -> Any:
    def make(right: Any) -> Any:
        def end_with(self: WaitAtSeveral, place: WaitingPlace, taken: Delivery) -> None:
            self.client.moved(place.queue)
            self.client.deliver(taken)

        return end_with

    return replaced(WaitAtSeveral, "end_with", make)


@mutant("a wait at several queues that ends leaves only the first of them", "hub-several")
def leaves_first() -> Any:
    def make(right: Any) -> Any:
        def unpark(self: WaitAtSeveral, waiter: object) -> None:
            del self._places[1:]
            right(self, waiter)

        return unpark

    return replaced(WaitAtSeveral, "unpark", make)


@mutant("a deleted queue ends the wait at several, and the client stays at the others", "hub-several")
def dismissed_at_one() -> Any:
    def make(right: Any) -> Any:
        def end_without(self: WaitAtSeveral) -> None:
            self.client.dismiss()

        return end_without

    return replaced(WaitAtSeveral, "end_without", make)


@mutant("an item of several queues counts as that of the first one named", "hub-several")
def counts_as_first() -> Any:
    def make(right: Any) -> Any:
        def end_with(self: WaitAtSeveral, place: WaitingPlace, taken: Delivery) -> None:
            first = next((other for other in self._places if other.queue.name == other.name), place)
            right(self, first, taken)

        return end_with

    return replaced(WaitAtSeveral, "end_with", make)
