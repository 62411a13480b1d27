"""Signed images: real keys, certificates and signatures, and a key manager that keeps them in a
dictionary. It stands for Barbican or Vault, which this machine does not have; all else is real."""

import base64
import datetime

from castellan.common import exception
from castellan.common.objects import x_509
from castellan.key_manager import key_manager
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from oslo_config import cfg

HASHES = {'SHA-256': hashes.SHA256(), 'SHA-512': hashes.SHA512()}


class DictionaryKeyManager(key_manager.KeyManager):
    """castellan's interface; ``fails`` is raised by each request."""

    certificates = {}
    fails = None
    contexts = []

    def __init__(self, configuration):
        pass

    def get(self, context, managed_object_id, metadata_only=False):
        """As KeyManager.get."""
        self.contexts.append(context)
        if DictionaryKeyManager.fails is not None:
            raise DictionaryKeyManager.fails
        if managed_object_id not in self.certificates:
            raise exception.ManagedObjectNotFoundError(uuid=managed_object_id)
        return x_509.X509(self.certificates[managed_object_id])

    def _refuse(self, *_arguments, **_named):
        raise AssertionError('it is only asked for certificates')

    create_key_pair = create_key = store = copy = list = delete = _refuse
    add_consumer = remove_consumer = _refuse


class Signer:
    """Somebody who has a certificate in the key manager.

    :param name: of the certificate there.
    :param issuer: who signs it; himself if None.
    """

    def __init__(self, name, kind='RSA-PSS', issuer=None, is_ca=False, days=1):
        self.name, self.kind = name, kind
        self.key = rsa.generate_private_key(65537, 2048) if kind == 'RSA-PSS' \
            else ec.generate_private_key(ec.SECP384R1())
        now = datetime.datetime.now(datetime.UTC)
        self.subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder().subject_name(self.subject).issuer_name(
            issuer.subject if issuer else self.subject).public_key(
            self.key.public_key()).serial_number(x509.random_serial_number()).not_valid_before(
            now - datetime.timedelta(days=2)).not_valid_after(now + datetime.timedelta(days=days))
        # Of a CA with a path length, without which cursive up to 0.2.3 fails.
        builder = builder.add_extension(
            x509.BasicConstraints(is_ca, 1 if is_ca else None), True).add_extension(
            x509.KeyUsage(not is_ca, False, False, False, False, is_ca, False, False, False), True)
        self.certificate = builder.sign((issuer or self).key, hashes.SHA256())
        self.register()

    def register(self, name=None):
        """Have the key manager give the certificate, also by another name."""
        DictionaryKeyManager.certificates[name or self.name] = self.certificate.public_bytes(
            serialization.Encoding.DER)

    def sign(self, content, hash_method='SHA-256'):
        """Return Glance's properties of a signature of bytes."""
        method = HASHES[hash_method]
        if self.kind == 'RSA-PSS':
            signature = self.key.sign(content, padding.PSS(
                padding.MGF1(method), padding.PSS.MAX_LENGTH), method)
        else:
            signature = self.key.sign(content, ec.ECDSA(method))
        return {'img_signature': base64.b64encode(signature).decode(),
                'img_signature_hash_method': hash_method, 'img_signature_key_type': self.kind,
                'img_signature_certificate_uuid': self.name}


def use_key_manager(monkeypatch):
    """Have cursive find an empty one."""
    from castellan import key_manager as castellan_key_manager
    cfg.CONF.register_opts(castellan_key_manager.key_manager_opts, 'key_manager')
    cfg.CONF.set_override('backend', f'{__name__}.{DictionaryKeyManager.__name__}', 'key_manager')
    monkeypatch.setattr(DictionaryKeyManager, 'certificates', {})
    monkeypatch.setattr(DictionaryKeyManager, 'contexts', [])
    monkeypatch.setattr(DictionaryKeyManager, 'fails', None)


def leave_key_manager():
    """Undo ``use_key_manager``."""
    cfg.CONF.clear_override('backend', 'key_manager')
