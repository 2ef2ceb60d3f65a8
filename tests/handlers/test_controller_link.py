"""Which of a controller's connections a broker listens to."""

from odradek.handlers.context import ControllerLink


def test_only_the_newest_connection_of_a_controller_counts() -> None:
    link = ControllerLink()
    assert link.is_current(1, 7)
    assert link.is_current(1, 7)
    assert link.is_current(1, 9)
    assert not link.is_current(1, 7)
    assert link.is_current(1, 9)


def test_a_new_controller_may_speak_on_an_older_connection() -> None:
    link = ControllerLink()
    assert link.is_current(1, 9)
    assert link.is_current(2, 3)
    assert not link.is_current(2, 2)


def test_a_deposed_controller_changes_nothing() -> None:
    link = ControllerLink()
    assert link.is_current(2, 3)
    assert link.is_current(1, 9)  # its epoch is refused elsewhere
    assert link.is_current(2, 3)
