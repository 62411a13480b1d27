"""Options of what tenants may have served, and how much of it, in the group ``[bootcache]``."""

from oslo_config import cfg

opts = [
    cfg.BoolOpt('verify_signatures',
                default=False,
                help="""
Whether the storage service verifies the signatures of images that have one
(img_signature and its like), and serves them. If not, signed images are
skipped, and their servers go the stock way.

The certificate comes from the key manager, as Nova and Glance get it: with the
credentials in ``[service_auth]``, whose user has to be allowed to read it. With
Barbican a certificate's owner allows that ("openstack acl user add").

Compute hosts where Nova checks signatures, and servers with trusted
certificates, have Nova's own code get signature and certificate, and validate
the certificate, at each server's start. They are served if the storage service
has verified the bytes by just these, and go the stock way otherwise.

Related options:

* ``backend`` in ``[key_manager]``, and ``[barbican]`` or ``[vault]``: castellan's.
* ``verify_glance_signatures`` in ``[glance]`` of nova.conf on compute hosts.
"""),
    cfg.IntOpt('changes_per_hour',
               default=1000,
               min=0,
               help="""
How many images of one owner (project) are taken up within an hour: registered,
changed in their content, or in properties by which their cache images are made
anew. Others of the owner's wait, pending, until the hour is over; nothing is
lost. Their servers boot as ever. What an operator orders, a server that boots
needs, or is done again after a restart or an upgrade, is not counted.

Owners take turns whatever this is: it bounds what one of them costs.

Possible values:

* A number of images.
* 0: any number.

Related options:

* ``concurrent_builds``
"""),
]
