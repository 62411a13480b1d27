"""Signed images: the storage service verifies them once, with cursive, and serves what is right.

Keys, signatures and cursive are real; see signing.py for the key manager, and
test_controller.py for the other neighbours."""

import concurrent.futures
import contextlib
import dataclasses
import os
import threading

import pytest
import signing
from castellan.common import exception as castellan_exception
from fakes_manager import SIZE

from bootcache import exception, signatures
from bootcache.ceph import places
from bootcache.ceph.rbd import Rbd
from bootcache.manifest import Standing
from bootcache.reasons import Reason
from bootcache.rpc.messages import PlanBoot, ServeStored
from glance_bootcache.images import cephbases, policy
from glance_bootcache.images.signatures import ImageSignatures

IMAGE = '7a5c0d3e-1f2b-4c3d-8e9f-0a1b2c3d4e5f'
CONTENT = b'signed' * (SIZE // 6)


@pytest.fixture
def house(house, monkeypatch):
    signing.use_key_manager(monkeypatch)
    house.conf.set_override('verify_signatures', True, 'bootcache')
    house.conf.set_override('auth_type', 'none', 'service_auth')
    house.restart()
    house.signer = signing.Signer('signer')

    def put(properties, content=CONTENT):
        """Register or change an image with properties of a signature."""
        house.images.put(IMAGE, content)
        stored, facts = house.images.images[IMAGE]
        house.images.images[IMAGE] = stored, dataclasses.replace(
            facts, properties={**facts.properties, **properties})
        house.changed(IMAGE)
        house.settle()
        return house.store.load(IMAGE)

    house.put = put
    yield house
    signing.leave_key_manager()


def offered(house):
    return house.hosts.plan_boot(PlanBoot(IMAGE, 'host', 'server'))


@pytest.mark.parametrize('kind', ['RSA-PSS', 'ECC_SECP384R1'])
@pytest.mark.parametrize('hash_method', ['SHA-256', 'SHA-512'])
def test_a_right_signature_is_served_with_what_it_was_verified_by(house, kind, hash_method):
    signer = signing.Signer('other', kind)
    manifest = house.put(signer.sign(CONTENT, hash_method))
    assert manifest.standing is Standing.DONE, manifest.reason
    answer = offered(house)
    assert answer['action'] == 'cache' and answer['signature'] == manifest.made.signature != ''
    assert house.hosts.serve_stored(
        ServeStored(IMAGE, 'host')).signature == manifest.made.signature
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')).settle is True


def test_of_an_unsigned_image_nobody_says_that_it_was_verified(house):
    assert house.put({}).standing is Standing.DONE
    assert offered(house)['signature'] == '' and signing.DictionaryKeyManager.contexts == []


def test_the_same_content_by_another_key_has_another_fingerprint(house):
    first = house.put(house.signer.sign(CONTENT)).made.signature
    other = house.put(signing.Signer('other').sign(CONTENT)).made.signature
    assert first and other and first != other


def wrong(signature):
    return {**signature, 'img_signature': signature['img_signature'][:-8] + 'AAAAAA=='}


@pytest.mark.parametrize('change, word', [
    (wrong, 'not what was signed'),
    (lambda s: {**s, 'img_signature': '%%%'}, 'not right'),
    (lambda s: {**s, 'img_signature_hash_method': 'MD5'}, 'hash method'),
    (lambda s: {**s, 'img_signature_key_type': 'DSA'}, 'key type'),
    (lambda s: {**s, 'img_signature_key_type': 'none'}, 'key type'),
    (lambda s: {**s, 'img_signature_certificate_uuid': 'nobodys'}, 'not found'),
    (lambda s: {**s, 'img_signature_certificate_uuid': 'rubbish'}, 'not right'),
    (lambda s: {name: s[name] for name in list(s)[1:]}, 'has no img_signature'),
    (lambda s: {name: s[name] for name in list(s)[:-1]}, 'no img_signature_certificate_uuid')])
def test_one_that_is_not_right_is_skipped_and_nothing_of_it_stays(house, change, word):
    signing.DictionaryKeyManager.certificates['rubbish'] = b'rubbish'
    manifest = house.put(change(house.signer.sign(CONTENT)))
    assert manifest.standing is Standing.SKIPPED
    assert manifest.cause.reason is Reason.SIGNATURE_INVALID and word in manifest.reason
    assert not manifest.made.base_path and manifest.made.signature == ''
    assert offered(house)['action'] == 'stock' and 'signature' not in offered(house)
    # Changes of other properties, as of the state that is shown, begin it no second time.
    asked = len(signing.DictionaryKeyManager.contexts)
    for _more in range(3):
        house.changed(IMAGE)
        house.settle()
    assert len(signing.DictionaryKeyManager.contexts) == asked


def test_other_bytes_than_those_that_were_signed(house):
    manifest = house.put(house.signer.sign(b'other bytes'))
    assert manifest.standing is Standing.SKIPPED and 'not what was signed' in manifest.reason


def test_a_key_manager_that_is_away_is_asked_again(house):
    signing.DictionaryKeyManager.fails = castellan_exception.KeyManagerError(reason='gone')
    manifest = house.put(house.signer.sign(CONTENT))
    assert policy.is_put_off(manifest) and 'key manager' in manifest.reason
    assert offered(house)['action'] == 'stock'
    signing.DictionaryKeyManager.fails = None
    house.later(30)
    house.settle()
    assert house.store.load(IMAGE).standing is Standing.DONE and offered(house)['signature']


def test_one_that_never_answers_is_waited_for_no_longer_than_it_may(house, monkeypatch):
    from glance_bootcache.images import signatures as verifying
    release = concurrent.futures.Future()
    monkeypatch.setattr(verifying, '_ANSWER_SECONDS', 0.01)
    monkeypatch.setattr(ImageSignatures, '_verifier', lambda self, image: release.result())
    got = []
    monkeypatch.setattr(house.images, 'download', got.append)
    manifest = house.put(house.signer.sign(CONTENT))
    assert policy.is_put_off(manifest) and 'no answer within' in manifest.reason
    # Each try leaves a thread behind, until it answers; and a base is not got in vain.
    for _try in range(5):
        house.later(3600)
        house.settle()
    assert policy.is_put_off(house.store.load(IMAGE))
    waiting = [thread for thread in threading.enumerate()
               if thread.name == 'bootcache-certificate']
    release.set_result(None)
    assert len(waiting) == 1 and got == []


def test_without_the_option_nothing_is_asked_and_the_image_goes_the_stock_way(house):
    house.conf.set_override('verify_signatures', False, 'bootcache')
    house.restart()
    manifest = house.put(house.signer.sign(CONTENT))
    assert manifest.standing is Standing.SKIPPED and 'verify_signatures' in manifest.reason
    assert signing.DictionaryKeyManager.contexts == []
    # And is taken up by a service that is started with it.
    house.conf.set_override('verify_signatures', True, 'bootcache')
    house.restart()
    house.recover()
    house.settle()
    assert house.store.load(IMAGE).made.signature


def test_an_image_that_gets_another_signature_is_verified_again_in_its_place(house):
    before = house.put(house.signer.sign(CONTENT))
    house.images.download = lambda image_id: pytest.fail('downloaded')
    house.boots.gate.clear()
    content, facts = house.images.images[IMAGE]
    again = house.signer.sign(CONTENT, 'SHA-512')
    house.images.images[IMAGE] = content, dataclasses.replace(
        facts, properties={**facts.properties, **again})
    house.changed(IMAGE)
    # Hosts let go of what was built.
    assert house.store.load(IMAGE).wished.generation > before.wished.generation
    house.boots.gate.set()
    house.settle()
    after = house.store.load(IMAGE)
    assert after.standing is Standing.DONE and after.made.base_path == before.made.base_path
    assert after.made.signature not in ('', before.made.signature)
    # One that is not right takes it all back; a server runs from the base.
    house.boots.servers = {IMAGE}
    after = house.put(wrong(again))
    assert after.standing is Standing.SKIPPED and after.made.cache_image is None
    assert offered(house)['action'] == 'stock'
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')).settle is False


def test_an_image_that_gets_one_later_is_not_served_until_it_is_verified(house):
    house.put({})
    signing.DictionaryKeyManager.fails = castellan_exception.KeyManagerError(reason='gone')
    manifest = house.put(house.signer.sign(CONTENT))
    assert manifest.made.base_path and policy.is_unverified(manifest)
    assert offered(house)['action'] == 'stock' and offered(house)['signature'] == ''
    assert house.hosts.serve_stored(ServeStored(IMAGE, 'host')).settle is False


def test_one_that_loses_it_is_served_as_any_other(house):
    house.put(house.signer.sign(CONTENT))
    manifest = house.put({})
    assert manifest.standing is Standing.DONE
    assert (manifest.made.signature, manifest.made.signed_as) == ('', '')


class Ceph:
    """Stands for the cluster, which has the image: see functional/test_ceph.py for a real one."""

    user = 'bootcache'

    def __init__(self, conf, user):
        pass

    def clone(self, parent, clone):
        """As Rbd.clone."""

    head = Rbd.head

    def size(self, clone):
        """As Rbd.size."""
        return len(CONTENT)

    @contextlib.contextmanager
    def reading(self, clone, check):
        """As Rbd.reading."""
        yield iter([CONTENT])

    def remove(self, clone):
        """As Rbd.remove."""
        return True


@pytest.fixture
def in_ceph(house, monkeypatch):
    monkeypatch.setattr(cephbases, 'Rbd', Ceph)
    house.conf.set_override('rbd_store_pool', 'images', 'bootcache')
    house.restart()
    return house


def is_verified_file(manifest):
    return not places.is_clone(manifest.made.base_path) \
        and os.path.getsize(manifest.made.base_path) == len(CONTENT) \
        and manifest.made.signature != '' and manifest.standing is Standing.DONE


def test_a_signed_one_is_downloaded_though_ceph_has_it(in_ceph):
    assert is_verified_file(in_ceph.put(in_ceph.signer.sign(CONTENT)))
    assert offered(in_ceph)['signature']


def test_one_in_ceph_that_gets_a_signature_is_downloaded_and_served_from_there(in_ceph):
    before = in_ceph.put({})
    assert places.is_clone(before.made.base_path), before.reason
    withdrawn = []
    in_ceph.exporter.retire = lambda image_id, with_base: withdrawn.append(with_base) or True
    assert is_verified_file(in_ceph.put(in_ceph.signer.sign(CONTENT)))
    assert True in withdrawn, 'its export is of the clone'


def test_one_in_ceph_that_gets_a_wrong_signature_is_not_served(in_ceph):
    in_ceph.put({})
    in_ceph.boots.servers = {IMAGE}
    manifest = in_ceph.put(wrong(in_ceph.signer.sign(CONTENT)))
    assert manifest.standing is Standing.SKIPPED and 'not what was signed' in manifest.reason
    assert offered(in_ceph)['action'] == 'stock'
    assert in_ceph.hosts.serve_stored(ServeStored(IMAGE, 'host')).settle is False


def test_a_verifier_of_an_unknown_kind_is_an_error_of_ours():
    with pytest.raises(exception.BootcacheError, match='cursive'):
        signatures.fingerprint(object())
