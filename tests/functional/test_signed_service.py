"""A real storage service verifies signatures: castellan's own Barbican client gets the certificate.

An HTTP server stands for Barbican and Glance, see tools/standins.py; keys and signatures are real.
Which signatures are right is in tests/unit/glance_bootcache/test_signed_images.py.
"""

import base64
import datetime
import random
import re
import uuid

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from functional_tools import until
from service_process import service as service  # a fixture
from test_lying_host import api as api  # likewise

from bootcache.rpc.messages import PlanBoot
from tools.standins import TOKEN, serving

RIGHT, WRONG, UNKNOWN = (str(uuid.UUID(int=number)) for number in (1, 2, 3))
CERTIFICATE, NOBODYS = str(uuid.UUID(int=8)), str(uuid.UUID(int=9))
CONTENT = random.Random(17).randbytes(1 << 20)


@pytest.fixture
def key():
    return rsa.generate_private_key(65537, 2048)


@pytest.fixture
def asked():
    """Who asked for certificates."""
    return []


@pytest.fixture
def cloud(key, asked):
    """Three signed images, of which one has other bytes, and one a certificate that is nowhere."""
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, 'signer')])
    now = datetime.datetime.now(datetime.UTC)
    certificate = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(
        key.public_key()).serial_number(1).not_valid_before(now).not_valid_after(
        now + datetime.timedelta(days=1)).sign(key, hashes.SHA256())
    signature = base64.b64encode(key.sign(CONTENT, padding.PSS(
        padding.MGF1(hashes.SHA256()), padding.PSS.MAX_LENGTH), hashes.SHA256())).decode()
    signed = {'img_signature': signature, 'img_signature_hash_method': 'SHA-256',
              'img_signature_key_type': 'RSA-PSS', 'img_signature_certificate_uuid': CERTIFICATE}
    with serving({RIGHT: CONTENT, WRONG: CONTENT[::-1], UNKNOWN: CONTENT},
                 {RIGHT: signed, WRONG: signed,
                  UNKNOWN: {**signed, 'img_signature_certificate_uuid': NOBODYS}},
                 {CERTIFICATE: certificate.public_bytes(serialization.Encoding.PEM)},
                 asked) as url:
        yield url


@pytest.fixture
def directory_of_service(service, directory):
    """The service verifies signatures; gives its directory."""
    service(profile_boots=False, verify_signatures=True, others={
        'key_manager': {'backend': 'barbican'}, 'barbican': {'barbican_api_version': 'v1'}})

    def said():
        with open(f'{directory}/log', errors='replace') as stream:
            return stream.read()

    until(lambda: 'glance-bootcache serves' in said(), 'the service')
    return directory


def test_what_is_right_is_served_and_nothing_else(api, asked):
    answers = {}
    for image in (RIGHT, WRONG, UNKNOWN):
        answers[image] = until(lambda image=image: (answer := api.send(PlanBoot(
            image, 'host', 'server')))['action'] != 'wait' and answer, image)
    right = answers[RIGHT]
    assert right['action'] == 'cold', right
    assert re.fullmatch('[0-9a-f]{64}', right['signature'])
    assert answers[WRONG]['action'] == answers[UNKNOWN]['action'] == 'stock'
    assert 'not what was signed' in answers[WRONG]['reason']
    assert 'Certificate not found' in answers[UNKNOWN]['reason']
    assert not any('signature' in answers[image] for image in (WRONG, UNKNOWN))
    # With the storage service's own credentials.
    assert set(asked) == {(CERTIFICATE, TOKEN)}
