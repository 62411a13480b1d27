"""How people are told how far many servers are."""

from typing import Protocol


class Telling(Protocol):
    """What shows it, as the commands' progress line does."""

    def show(self, what: str, detail: str = '') -> None:
        """Show where things are."""

    def bar(self, what: str, done: int, total: int, unit: str, detail: str = '') -> None:
        """Show how many of several things are done."""

    def line(self, text: str, *, terminal: bool = True) -> None:
        """Add a line that stays."""
