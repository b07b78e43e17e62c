"""Edits of users and permissions. No I/O."""

from __future__ import annotations

from headgate.broker.cluster.access import User
from headgate.broker.cluster.acl import Acl
from headgate.broker.cluster.edits.edit import Edit
from headgate.broker.cluster.manifest import Manifest


class PutUser(Edit, frozen=True, tag="put_user"):
    """A user from now on, in place of the one of that name. `new`: there must be none."""

    user: User
    new: bool = False

    def check(self, state: Manifest) -> None:
        state.access.check_user(self.user, new=self.new)

    def apply(self, state: Manifest) -> None:
        state.access.put(self.user)


class DeleteUser(Edit, frozen=True, tag="delete_user"):
    name: str

    def check(self, state: Manifest) -> None:
        state.access.check_deletion(self.name)

    def apply(self, state: Manifest) -> None:
        state.access.delete(self.name)


class AddAcls(Edit, frozen=True, tag="add_acls"):
    acls: list[Acl]

    def check(self, state: Manifest) -> None:
        state.access.check_acls(self.acls)

    def apply(self, state: Manifest) -> None:
        state.access.add(self.acls)


class RemoveAcls(Edit, frozen=True, tag="remove_acls"):
    acls: list[Acl]

    def apply(self, state: Manifest) -> None:
        state.access.remove(self.acls)


AccessEdit = PutUser | DeleteUser | AddAcls | RemoveAcls
