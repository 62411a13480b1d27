"""What a Ceph user of ours may do, and may not: looked at before anything is done as it."""

import dataclasses
import functools
import os
import shutil

from bootcache import exception, qemuimg
from bootcache.ceph import rbd
from bootcache.ceph.rbd import Rbd

# For monitors. ``profile rbd``, and ``profile rbd-read-only``, would let it put others on Ceph's
# blocklist: what has locks needs that, and these clones have none.
MON_CAPS = 'allow r'
_PROGRAMS = 'rbd', 'rados', 'ceph'
# A namespace that is nobody's: whoever may delete there may so in all of the pool.
_NOBODYS = 'bootcache-of-nobody'


class HarmfulKey(exception.ConfigurationError):
    """The user can delete what is others'."""


@dataclasses.dataclass(frozen=True)
class RbdAccess:
    """How one service reaches Ceph, and the options that say so.

    :ivar pool: Glance's.
    :ivar clone_pool: of its own clones.
    :ivar namespace: of its own clones, within that pool.
    :ivar user: without ``client.``.
    :ivar conf: path of ceph.conf.
    :ivar option: that switches it on, with its value, as messages have it.
    :ivar user_option: names the user.
    :ivar conf_option: names the path.
    :ivar otherwise: what happens without it, as messages have it.
    """

    pool: str
    clone_pool: str
    namespace: str
    user: str
    conf: str
    option: str
    user_option: str
    conf_option: str
    otherwise: str

    @functools.cached_property
    def commands(self) -> Rbd:
        """Ceph's commands as that user."""
        return Rbd(self.conf, self.user)

    @property
    def caps(self) -> str:
        """The caps for OSDs that the user is to have, and no more."""
        return (f'profile rbd-read-only pool={self.pool}, profile rbd pool={self.clone_pool}'
                f' namespace={self.namespace}')


def check(access: RbdAccess, is_alone: bool = False) -> None:
    """Check that clones can be made and read, by a user who can delete nothing of Glance's.

    :param is_alone: whether it is to be one who can delete no other service's clones either.
    :raises HarmfulKey: naming the option and the cure; so do the others.
    :raises ConfigurationError: if anything else keeps clones from being made and read.
    :raises Interrupted: if Ceph does not answer.
    """
    lacking = [name for name in _PROGRAMS if shutil.which(name) is None]
    if lacking:
        raise exception.ConfigurationError(
            f'[bootcache]{access.option}: {", ".join(lacking)} cannot be found; Debian has it in'
            f' {rbd.PACKAGE}, or {access.otherwise}')
    if not os.access(access.conf, os.R_OK):
        raise exception.ConfigurationError(
            f'[bootcache]{access.conf_option}={access.conf} cannot be read by this service\'s user;'
            ' name Ceph\'s configuration file, or give the user the right to it')
    try:
        qemuimg.check_driver('rbd')
    except exception.BootcacheError as error:
        raise exception.ConfigurationError(f'[bootcache]{access.option}: {error}') from error
    try:
        check_key(access, is_alone)
        access.commands.clones(access.clone_pool, access.namespace)
    except (exception.ConfigurationError, exception.Interrupted):
        raise
    except rbd.RbdNoKey as error:
        raise exception.ConfigurationError(f'[bootcache]{access.option}: {error}') from error
    except exception.BootcacheError as error:
        if isinstance(error, rbd.RbdAbsent) and rbd.is_of_pool(error):
            raise exception.ConfigurationError(
                f'[bootcache]{access.option}: there is no such pool ({error}); "ceph osd pool ls"'
                ' tells which there are') from error
        raise exception.ConfigurationError(
            f'[bootcache]{access.option}: {error}. It needs pool {access.clone_pool}, namespace'
            f' {access.namespace} in it ("rbd namespace create'
            f' {access.clone_pool}/{access.namespace}"), and client.{access.user} with mon'
            f' "{MON_CAPS}", osd "{access.caps}"') from error


def check_key(access: RbdAccess, is_alone: bool) -> None:
    """Check what the user can delete; the parameters and other errors are those of ``check``.

    :raises BootcacheError: if Ceph says no for another reason, as to a user who has no key yet.
    """
    commands = access.commands
    if is_alone:
        # Whom Ceph does not let in can delete nothing either, and may be let in later.
        commands.fsid()
    cure = f'; give client.{access.user} no more than "{access.caps}" there'
    if commands.may_delete(access.pool):
        raise HarmfulKey(
            f'[bootcache]{access.user_option}={access.user} can delete what is in pool'
            f' {access.pool}, where Glance\'s images are{cure}')
    if is_alone and any(commands.may_delete(access.clone_pool, namespace)
                        for namespace in ('', _NOBODYS)):
        raise HarmfulKey(
            f'[bootcache]{access.user_option}={access.user} can delete all that is in pool'
            f' {access.clone_pool}, where others have their clones{cure}')
