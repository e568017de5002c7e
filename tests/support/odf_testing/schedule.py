"""A schedule of a node that polls nothing."""


class NoSchedule:
    """The part of `PollSchedule` that commands on push sources use."""

    def look_again(self) -> None:
        """Do nothing."""
