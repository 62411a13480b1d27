"""Images' signatures: verified with the library by which Nova and Glance do it, once an image."""

from collections.abc import Callable
from typing import Any

from cryptography import exceptions as crypto_exceptions
from oslo_config import cfg
from oslo_context import context as oslo_context
from oslo_log import log as logging

from bootcache import conf as bootcache_conf
from bootcache import exception, signatures
from bootcache.reasons import Reason
from bootcache.util import threads
from bootcache.util.backoff import CircuitBreaker
from glance_bootcache.glance import images
from glance_bootcache.imagefacts import ImageFacts

LOG = logging.getLogger(__name__)

_PIECE = 1 << 20
# castellan's clients wait for ever for a key manager that takes a connection and is silent.
_ANSWER_SECONDS = 60
# For which nobody asks one that was silent: each that does leaves a thread behind, for as long as
# the key manager takes.
_SILENCE_SECONDS = 600


class _Context(oslo_context.RequestContext):  # type: ignore[misc]
    """The storage service's own credentials, as castellan takes them.

    :param auth: keystoneauth's plugin.
    """

    def __init__(self, auth: Any):
        super().__init__()
        self._auth = auth

    def get_auth_plugin(self) -> Any:
        """What castellan asks for."""
        return self._auth


class ImageSignatures:
    """Verifies them.

    :param conf: configuration of the storage service. cursive reads castellan's options from
        oslo.config's own CONF, which it is in the service.
    """

    def __init__(self, conf: cfg.ConfigOpts):
        self._conf = conf
        self._health = CircuitBreaker(1, _SILENCE_SECONDS)

    @property
    def _is_on(self) -> bool:
        return bool(self._conf[bootcache_conf.GROUP].verify_signatures)

    def verifier(self, image: ImageFacts) -> Any:
        """Get what an image is verified by; the key manager is asked for the certificate.

        :returns: for ``verify``, once; None of an image without signature.
        :raises ImageRefused: if the signature is none.
        :raises ServiceAway: if the key manager does not give the certificate now.
        """
        if not self._is_on or not signatures.is_signed(image.properties):
            return None
        if not self._health.may_ask():
            raise _away(image, 'it did not answer just now')
        try:
            with self._health.hearing(lambda error: isinstance(error, TimeoutError)):
                return threads.daemon_thread(
                    lambda: self._verifier(image), 'bootcache-certificate').result(_ANSWER_SECONDS)
        except TimeoutError:
            raise _away(image, f'no answer within {_ANSWER_SECONDS} s') from None

    def verify(self, image: ImageFacts, verifier: Any, path: str,
               check: Callable[[], None]) -> str:
        """Verify the bytes of an image file.

        :param verifier: what ``verifier`` returned for it.
        :param check: called for each MiB; what it raises ends it.
        :returns: the fingerprint of what they were checked by; empty of an image without signature.
        :raises ImageRefused: if they do not match.
        :raises OSError: if the file cannot be read.
        """
        if verifier is None:
            return ''
        try:
            with open(path, 'rb') as stream:
                while piece := stream.read(_PIECE):
                    check()
                    verifier.update(piece)
            verifier.verify()
        except crypto_exceptions.InvalidSignature as error:
            raise exception.ImageRefused('the content is not what was signed',
                                         Reason.SIGNATURE_INVALID) from error
        except (ValueError, TypeError, crypto_exceptions.UnsupportedAlgorithm) as error:
            raise _refused(error) from error
        LOG.info('image %s: its signature is right', image.image_id)
        return signatures.fingerprint(verifier)

    def _verifier(self, image: ImageFacts) -> Any:
        # Barbican's client, and much else, that is needed for signed images only.
        from castellan.common import exception as castellan_exception
        from cursive import exception as cursive_exception
        from cursive import signature_utils
        parts = [str(image.properties.get(name) or '') for name in signatures.PARTS]
        signature, hash_method, key_type, certificate = parts
        try:
            return signature_utils.get_verifier(
                context=_Context(images.session(self._conf).auth),
                img_signature_certificate_uuid=certificate, img_signature_hash_method=hash_method,
                img_signature=signature, img_signature_key_type=key_type)
        except cursive_exception.SignatureVerificationError as error:
            if isinstance(error.__context__, castellan_exception.KeyManagerError):
                raise _away(image, error.__context__) from error
            raise _refused(error) from error
        except (ValueError, TypeError, crypto_exceptions.UnsupportedAlgorithm) as error:
            raise _refused(error) from error
        except exception.BootcacheError:
            raise
        except Exception as error:
            # Of Keystone, of a key manager's client, or of its connection.
            raise _away(image, error) from error


def _refused(error: Exception) -> exception.ImageRefused:
    return exception.ImageRefused(str(error)[:300], Reason.SIGNATURE_INVALID)


def _away(image: ImageFacts, error: object) -> exception.ServiceAway:
    certificate = str(image.properties.get(signatures.PARTS[-1]))[:64]
    return exception.ServiceAway(
        f'the key manager does not give certificate {certificate!r} of the image\'s signature:'
        f' {str(error)[:300]}; it is to answer, and its owner is to let the storage service\'s user'
        ' read it')
