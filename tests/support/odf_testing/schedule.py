"""A schedule of a node that polls nothing."""


class NoSchedule:
    """The part of `PollSchedule` that commands on push sources use."""

    def rescan(self) -> None:
        """Do nothing."""
