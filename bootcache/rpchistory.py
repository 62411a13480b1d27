"""What each version of the storage service's RPC API brought.

* 1.0: image_registered, plan_boot, list_images, get_image, get_working_set, build_image,
  delete_image.
* 1.1: plan_boot's actions cold and wait, its entries medium, has_memory, image_hash, pinned and
  watch, and the base's place also with stock; report_boot, report_use, promote_image, pin_image,
  serve_stored.
* 1.2: plan_boot's entry generation; report_holdings, which takes the place of report_use (that is
  gone: of a host of 1.1 it is not known what it used last), report_warm,
  list_hosts, image_hosts, evict_image, warm_image, get_warming.
* 1.3: report_holdings' entries needs and unsettled; plan_boot's entry ready_in; list_hosts' entries
  unsettled and named; image_hosts' entry storage_bytes.
* 1.4: get_image's entry kept_for.
* 1.5: a profile boot is watched and reported by its host, as any other: plan_boot's entry watch
  also with record, report_boot's profile_token and line, boot_progress; recording_progress and
  report_working_set, which were 1.0's, are gone: a host and a service of which one is of an earlier
  version can do all but profile boots. plan_boot's entry verified; waiting, in unsettled of
  report_holdings, and in list_hosts.
* 1.6: plan_boot's owner.
* 1.7: report_boot's server_id.
* 1.8: report_holdings' entry rpc, and list_hosts'.
* 1.9: plan_boot's and serve_stored's entry tls. A host of an earlier version does not read it, and
  what it opens without TLS is refused: its servers go the stock way.
* 1.10: plan_boot's and serve_stored's entry signature.
* 1.11: plan_boot's and serve_stored's certificate, and serve_stored's host: the exporter that they
  name serves this host alone. One of an earlier version is told of an exporter for all such hosts.
* 1.12: exchange_cache.
* 1.13: exchange_base, report_exchange; exchanged, in image_hosts; begin_snapshot, finish_snapshot,
  abandon_snapshot.
* 1.14: finish_snapshot's upload, upload_snapshot, and what abandon_snapshot returns;
  report_holdings' entry certificates_end, and list_hosts'; take_slot, hold_slot; slot and again, in
  the answer of exchange_base.
* 1.15: plan_boot's entry difference, and the base's place with wait.

plan_boot's entry rbd has no version: a host that does not know it, or is not told it, reads the
base through the exporter. So it is with its entry snapshot_id, which the first ones did not tell: a
host that is told one takes no other snapshot of that name. And with others: servers of a host that
does not know it, or is not told it, wait for no other host.
"""

# What a message asks for at least: a service of an earlier version then answers what it knows.
FIRST = '1.0'
SINCE = {
    **dict.fromkeys(('report_boot', 'promote_image', 'pin_image', 'serve_stored'), '1.1'),
    **dict.fromkeys(('report_holdings', 'report_warm', 'list_hosts', 'image_hosts', 'evict_image',
                     'warm_image', 'get_warming'), '1.2'),
    'boot_progress': '1.5', 'exchange_cache': '1.12',
    **dict.fromkeys(('exchange_base', 'report_exchange', 'begin_snapshot', 'finish_snapshot',
                     'abandon_snapshot'), '1.13'),
    **dict.fromkeys(('upload_snapshot', 'take_slot', 'hold_slot'), '1.14')}
