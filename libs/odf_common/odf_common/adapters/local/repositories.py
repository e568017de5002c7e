"""Named repositories: one manifest per repository, `$ODF_HOME/repositories/<lower-case name>.yaml`."""

import contextlib
from pathlib import Path
from typing import Final

from odf_common.adapters.local import durable
from odf_common.adapters.local.faults import guarded_methods, read_file
from odf_common.adapters.repository_urls import repository_url
from odf_common.codec.manifests import repository_from_text, repository_to_yaml
from odf_common.errors import AlreadyExists, InvalidInput, NotFound
from odf_common.identity.dataset_refs import Name
from odf_common.metadata.events import Repository

FOLDER: Final = "repositories"
SUFFIX: Final = ".yaml"


class UnknownRepository(NotFound):
    """No repository has this name."""

    ADVICE = "`odf repo list` shows the named repositories; add one with `odf repo add NAME URL`"


@guarded_methods
class LocalRepositories:
    """Repositories by name, without regard to case; several processes may use them at the same time."""

    def __init__(self, home: Path) -> None:
        """Use `home`, which need not exist yet."""
        self._folder = home / FOLDER

    def names(self) -> tuple[Name, ...]:
        """Return all names, ascending; files that are not named like a repository are ignored."""
        repositories = []
        if durable.exists(self._folder):
            for file in self._folder.iterdir():
                if file.name.endswith(SUFFIX):
                    with contextlib.suppress(InvalidInput):
                        repositories.append(Name(file.name.removesuffix(SUFFIX)))
        return tuple(sorted(repositories))

    def find(self, name: Name) -> Repository:
        """Return a repository; raises `UnknownRepository`, or `InvalidInput` if its manifest is damaged."""
        file = self._file(name)
        try:
            text = read_file(file)
        except FileNotFoundError as error:
            raise UnknownRepository(what=f"repository {name}") from error
        repository = repository_from_text(text, str(file))
        return Repository(url=repository_url(repository.url))

    def add(self, name: Name, url: str) -> Repository:
        """Add a named repository durably.

        Raises `AlreadyExists` if the name is taken, `InvalidInput` if `url` is not the URL of a repository.
        """
        added = Repository(url=repository_url(url))
        with durable.lock_file(self._folder.parent / "locks" / FOLDER):
            if durable.exists(self._file(name)):
                raise AlreadyExists(what=f"a repository named {name}")
            durable.write(self._file(name), repository_to_yaml(added).encode())
        return added

    def remove(self, name: Name) -> None:
        """Remove a named repository durably, even if its manifest is damaged; raises `UnknownRepository`."""
        if not durable.exists(self._file(name)):
            raise UnknownRepository(what=f"repository {name}")
        durable.remove(self._file(name))

    def _file(self, name: Name) -> Path:
        return self._folder / f"{name.key}{SUFFIX}"
