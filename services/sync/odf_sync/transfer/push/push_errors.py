"""Reasons why a dataset is not pushed."""

from odf_common.errors import Conflict, InvalidInput, NotFound, count_of
from odf_sync.transfer.compare import ChainsDiverged


class RemoteAhead(Conflict):
    """The other node has the same chain with more blocks."""

    ADVICE = "pull it; or drop those blocks there with --force"

    url: str
    blocks: int

    def __str__(self) -> str:
        """Return the number of blocks that it is ahead."""
        return f"the chain at {self.url} is ahead: it has {count_of(self.blocks, 'block')} more than the local one"


class PushDiverged(ChainsDiverged):
    """Both chains have blocks of their own after a common one; neither can follow the other."""

    ADVICE = "look at the other chain with `odf pull URL --as NAME@REF`; --force replaces it with this chain"


class DataNotHere(NotFound):
    """The data of a derivative is missing on this node, and other nodes take complete pushes only."""

    MESSAGE = (
        "the data of {what} is missing here: it was dropped, or lost; another node takes a dataset only "
        "with its data"
    )
    ADVICE = (
        "`odf pull {what}` recomputes it; a folder or a bucket takes it without data: `odf push {what} "
        "--to file:///FOLDER`"
    )


class NoPlaceThere(NotFound):
    """A node has no dataset of a name, and lets none be created."""

    ADVICE = (
        "check its name, which is ACCOUNT/DATASET on a node with accounts; or you may not write it: log "
        "in with `odf login`, or ask its owner for a role"
    )


class NoVisibilityThere(InvalidInput):
    """A push to a folder or a bucket was given a visibility, which only nodes keep."""

    MESSAGE = "{url} has no visibility of its own: anyone who can read its files can read the dataset"
    ADVICE = "set the permissions of the folder or bucket, then push without --visibility"

    url: str


class AnotherVisibility(Conflict):
    """A push asks for another visibility than the dataset has there; it sets that of a new dataset only."""

    alias: str
    url: str
    is_public: bool

    def __str__(self) -> str:
        """Return the readers that it has there."""
        if self.is_public:
            return (
                f"{self.alias} is to be private, but everyone can read it at {self.url}: nothing was pushed"
            )
        return f"{self.alias} is to be public, but it is private at {self.url}: nothing was pushed"

    def advice(self) -> str:
        """Return the way to change that, or to push it anyway."""
        now, other = ("public", "private") if self.is_public else ("private", "public")
        return (
            f"its owner changes that by `odf access set DATASET --visibility {other}`; or push with "
            f"`--visibility {now}`"
        )
