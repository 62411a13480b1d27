"""The ``bootcache-status`` command: what has to be right before an upgrade goes on."""

import os
import sys
from collections.abc import Callable

from oslo_config import cfg
from oslo_upgradecheck import upgradecheck

from bootcache import certificates, exception, optionfault, tls
from bootcache import conf as bootcache_conf
from glance_bootcache import conf as glance_conf
from glance_bootcache.cli import client
from glance_bootcache.db import conf as db_conf
from glance_bootcache.db import schema
from glance_bootcache.db.engine import Database


def _result(check: Callable[[], None]) -> upgradecheck.Result:
    try:
        check()
    except exception.BootcacheError as error:
        return upgradecheck.Result(upgradecheck.Code.FAILURE, str(error))
    return upgradecheck.Result(upgradecheck.Code.SUCCESS)


class Checks(upgradecheck.UpgradeCommands):  # type: ignore[misc]
    """The checks of ``bootcache-status upgrade check``."""

    def _options(self) -> upgradecheck.Result:
        """Check options that belong together."""
        return _result(lambda: glance_conf.check(cfg.CONF))

    def _schema(self) -> upgradecheck.Result:
        """Check that the database has the tables that this release needs."""
        def check() -> None:
            db_conf.register_opts(cfg.CONF)
            default = db_conf.default_file(cfg.CONF)
            if default is not None and not os.path.exists(os.path.dirname(default)):
                return  # The service's unit makes it, and the service all that is in it.
            database = Database(cfg.CONF)
            database.check_user()
            database.check_writable()
            # The service makes and upgrades the default one itself.
            if database.is_default:
                schema.version(database)
            else:
                schema.check(database)

        return _result(check)

    def _certificates(self) -> upgradecheck.Result:
        """Check that the exporter's certificates can be used."""
        group = cfg.CONF[bootcache_conf.GROUP]
        if not group.tls_directory:
            return upgradecheck.Result(upgradecheck.Code.SUCCESS, 'TLS is not configured')
        return _result(lambda: certificates.check(
            group.tls_directory, tls.Endpoint.SERVER, group.advertise_host or group.export_host))

    _upgrade_checks = (('Options', _options), ('Database schema', _schema),
                       ('Certificates', _certificates))


def main(argv: list[str] | None = None) -> int:
    """Run the checks.

    :returns: 0 if all is right, 1 for warnings, 2 if something has to be done, 255 if that cannot
        be said, as other services' commands do.
    """
    conf = cfg.CONF
    glance_conf.register_opts(conf)
    try:
        return int(upgradecheck.main(conf, client.PROJECT, Checks(),
                                     sys.argv[1:] if argv is None else argv))
    except cfg.Error as error:
        print(f'bootcache-status: {optionfault.told(error, conf)}', file=sys.stderr)
        return 255


if __name__ == '__main__':
    sys.exit(main())
