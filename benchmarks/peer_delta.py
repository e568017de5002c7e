"""The peer of catching up: the same topic into a Delta table with commonly used libraries, without hashes.

Arguments: bootstrap server, topic, number of messages, folder of the table. Prints seconds and processor seconds
from the first request to the last commit.
"""

import sys

from deltalake import write_deltalake
from departures import parse
from taken import tell_cost, texts


def main() -> None:
    """Consume, parse, append."""
    bootstrap, topic, count, folder = sys.argv[1:]

    def copy() -> None:
        for text in texts(bootstrap, topic, int(count)):
            write_deltalake(folder, parse(text), mode="append")

    tell_cost(copy)


if __name__ == "__main__":
    main()
