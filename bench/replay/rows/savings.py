"""YOLO table I: what cache images save, image by image, and what would make them smaller."""

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.replay import figures, record, sums
from bench.replay.rows import contents
from bench.replay.setting import (
    GIGABIT,
    Journal,
    Setting,
    catalogue,
    extents_of,
    image_file,
    recorded,
)
from bootcache import cachelayout

NAME = 'savings'
TITLE = 'What cache images save (YOLO, table I)'
PEER = 'bootcache cache image'
ALL = 'all'
_OWN = ('small', 'debian')
# Nothing is sent and no guest is replayed: rate, scale and repeats have no meaning here.
QUICK = Setting(False, GIGABIT, 1.0, 1, _OWN)
FULL = Setting(True, GIGABIT, 1.0, 1, (*_OWN, ALL))
# Of the quick run; what comes after is another one's to measure.
_QUICK_SECONDS = 22.0
# YOLO table I: 983 images of Google's cloud; its worst family (Ubuntu), and an image's mean.
YOLO_IMAGES, YOLO_BYTES, YOLO_BOOT_BYTES, YOLO_WORST = 983, 1.34e12, 40.4e9, 0.059
# What they may be at most: of all image files, and of what boots read.
_MOST_OF_IMAGES, _MOST_OF_READS = 0.10, 0.55
# What is measured of all cache images together: its name, and how an image's line tells it.
WAYS = {
    PEER: lambda one: one['cache_bytes'],
    'not compressed': lambda one: one['plain_bytes'],
    'with zstd': lambda one: one['zstd_bytes'],
    'with dedup, 64 KiB': lambda one: one['new']['65536'],
    'with dedup, 4 KiB': lambda one: one['new']['4096'],
    'with dedup, 4 KiB, and zstd': lambda one: one['new_zstd']['4096']}
_NOTE = ('bytes of the cache image over those of the image file (qcow2, not compressed); no boot is'
         ' replayed, so nothing is read')


def run(setting: Setting, directory: Path) -> None:
    """Measure, and leave the journal in the report's directory.

    The quick run takes, beside the images that it is told, what of the catalogue is made and
    recorded already, as far as it comes in its time.
    """
    began = time.monotonic()
    said = dataclasses.asdict(setting)
    journal = Journal(directory, NAME, {
        **{name: said[name] for name in ('full', 'images')}, 'zstd': contents.zstd_version(),
        'cluster_bytes': cachelayout.DEFAULT_CLUSTER_BYTES,
        'compression': cachelayout.DEFAULT_COMPRESSION.value, 'chunks': contents.CHUNKS})
    stores = [contents.Store(size) for size in contents.CHUNKS]
    names = [name for told in setting.images
             for name in (catalogue() if told == ALL else [told])]
    more = catalogue(cached=True) if setting == QUICK else []
    for name in [*names, *more]:
        if name in more and (time.monotonic() - began > _QUICK_SECONDS or not _recorded(name)):
            continue
        path, traces = recorded(name, 1)
        profile = traces[0]
        found = contents.measure(path, profile.header.virtual_bytes, extents_of(profile), stores)
        journal.keep({'image': name, 'image_hash': profile.header.image_hash,
                      'boot_seconds': profile.header.boot_seconds, **found},
                     f'{name:20} {found["image_bytes"] / 1e6:7.1f} MB, cache image'
                     f' {found["cache_bytes"] / 1e6:6.1f} MB')


def _recorded(name: str) -> bool:
    return record.trace_path(record.file_hash(image_file(name)), 0).exists()


def rows(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the report's rows: one for each image, and one for each way of keeping all. Pure."""
    known = ('image_bytes', 'virtual_bytes', 'used_bytes', 'working_set_bytes', 'plain_bytes',
             'zstd_bytes')

    def row(peer: str, image: str, those: Sequence[dict[str, Any]]) -> dict[str, Any]:
        whole = {name: sum(one[name] for one in those) for name in known}
        kept = sum(WAYS[peer](one) for one in those)
        return {'row': NAME, 'peer': peer, 'hosts': 1, 'images': len(those), 'image': image,
                'ratio': round(kept / whole['image_bytes'], 4), 'spread': 0.0, 'base_bytes': 0,
                'cache_bytes': kept, **whole, 'note': _NOTE, 'run': head['run']}

    return [*(row(PEER, one['image'], [one]) for one in runs), *(row(peer, ALL, runs)
                                                                 for peer in WAYS)]


def targets(head: dict[str, Any], runs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Compare with YOLO, and tell what is not built. Pure."""
    total = {row['peer']: row for row in rows(head, runs) if row['image'] == ALL}
    ours = total[PEER]
    count, kept = ours['images'], ours['cache_bytes']
    plain, stream = (total[name]['cache_bytes'] for name in ('not compressed', 'with zstd'))
    where = (f'{count} images; not compressed they are {plain / ours["working_set_bytes"]:.2f}'
             f' times what boots read, as clusters have what is beside it; compressed'
             f' {kept / plain:.2f} times that, each cluster by itself, as one stream'
             f' {stream / plain:.2f}')
    found = [
        sums.target(head, 'all cache images over all images (YOLO: its worst family)', YOLO_WORST,
                    ours['ratio'],
                    f'means: image {ours["image_bytes"] / count / 1e6:.0f} MB, YOLO\'s'
                    f' {YOLO_BYTES / YOLO_IMAGES / 1e6:.0f} MB; cache image'
                    f' {kept / count / 1e6:.0f} MB, YOLO\'s'
                    f' {YOLO_BOOT_BYTES / YOLO_IMAGES / 1e6:.0f} MB'),
        sums.target(head, 'all cache images over all images', _MOST_OF_IMAGES, ours['ratio'],
                    f'{count} images'),
        sums.target(head, 'all cache images over what boots read', _MOST_OF_READS,
                    round(kept / ours['working_set_bytes'], 4), where),
        sums.target(head, 'cache image over working set, at worst', None,
                    max(one['cache_bytes'] / one['working_set_bytes'] for one in runs),
                    f'clusters of {head["setting"]["cluster_bytes"]} bytes, compression'
                    f' {head["setting"]["compression"]}, tables included')]
    return found + [
        sums.target(head, f'all cache images {peer} over all cache images', None,
                    round(row['cache_bytes'] / kept, 4), f'measured, not built; {count} images')
        for peer, row in total.items() if peer != PEER]


def intro(head: dict[str, Any]) -> str:
    """Say how it was measured. Pure."""
    return ('Sizes of files, which are exact; nothing is timed. An image is a qcow2 without'
            ' compression. Its cache image is built of one recorded boot: until the login prompt,'
            ' which the image shows when its services have started, and on until the guest is'
            ' quiet, for half a minute at most.'
            f' Its clusters have {head["setting"]["cluster_bytes"]} bytes, compressed by'
            f' {head["setting"]["compression"]}. Compression as a whole:'
            f' {head["setting"]["zstd"]}. Chunks that would be kept once lie at'
            ' multiples of their size. Both are measured, not built.')


def draw(head: dict[str, Any], rows: list[dict[str, Any]],
         directory: Path) -> list[tuple[str, str]]:
    """Draw each image with its cache image, and all cache images by how they are kept."""
    return [_draw_images(rows, directory), _draw_ways(rows, directory)]


def _draw_images(rows: list[dict[str, Any]], directory: Path) -> tuple[str, str]:
    mine = sorted((row for row in rows if row['image'] != ALL), key=lambda row: row['image_bytes'])
    figure, axes = figures.canvas('What of an image a boot needs: its cache image, in % of the'
                                  ' image file', 'MB', '')
    figure.set_size_inches(8.5, 1.4 + 0.24 * len(mine))
    places = range(len(mine))
    for name, colour, thick, label in (('image_bytes', '#cfd6df', 0.8, 'image file (qcow2)'),
                                       ('cache_bytes', '#0b6e4f', 0.8, 'cache image'),
                                       ('working_set_bytes', '#8fd0b4', 0.3,
                                        'what the boot reads')):
        axes.barh(places, [row[name] / 1e6 for row in mine], thick, color=colour, label=label)
    for place, row in zip(places, mine, strict=True):
        axes.text(row['image_bytes'] / 1e6, place, f' {row["ratio"]:.1%}', va='center', fontsize=7)
    axes.set_yticks(places, [row['image'] for row in mine], fontsize=8)
    axes.margins(x=0.08, y=0.02)
    axes.legend(fontsize=8, loc='lower right')
    figures.save(figure, directory / 'savings-images.svg')
    return ('savings-images.svg', 'A host that boots an image fetches its cache image; the'
            ' percentage is that of the image file.')


def _draw_ways(rows: list[dict[str, Any]], directory: Path) -> tuple[str, str]:
    mine = [row for row in rows if row['image'] == ALL]
    figure, axes = figures.canvas(f'The cache images of {mine[0]["images"]} images together, in MB'
                                  ' and in % of all image files', 'MB', '')
    figure.set_size_inches(8.5, 2.6)
    colours = ['#0b6e4f' if row['peer'] == PEER else '#3b5b92' for row in mine]
    labels = ['cache images, as built' if row['peer'] == PEER else row['peer'] for row in mine]
    axes.barh(range(len(mine)), [row['cache_bytes'] / 1e6 for row in mine], color=colours)
    for place, row in enumerate(mine):
        axes.text(row['cache_bytes'] / 1e6, place,
                  f' {row["cache_bytes"] / 1e6:.0f} MB, {row["ratio"]:.1%}', va='center',
                  fontsize=8)
    axes.set_yticks(range(len(mine)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    figures.save(figure, directory / 'savings-ways.svg')
    return ('savings-ways.svg', 'Green is what is built; blue is what the same takes that is not'
            ' compressed, compressed as a whole, or kept once where chunks are equal.')


def table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the table's columns and lines: each image, then all of them in each way. Pure."""
    sizes = ('image_bytes', 'virtual_bytes', 'used_bytes', 'working_set_bytes', 'cache_bytes')

    def line(row: dict[str, Any]) -> list[Any]:
        built = row['peer'] == PEER
        name = row['image'] if row['image'] != ALL else \
            f'all {row["images"]}' if built else f'all {row["peer"]}'
        # What is not built differs in the cache images' bytes alone.
        return [name, *(f'{row[size] / 1e6:.1f}' if built or size == 'cache_bytes' else ''
                        for size in sizes), f'{row["ratio"]:.1%}', f'{1 - row["ratio"]:.1%}',
                f'{row["plain_bytes"] / 1e6:.1f}' if built else '']

    return (['image', 'image file, MB', 'virtual, MB', 'files in it, MB', 'boot reads, MB',
             'cache image, MB', 'of the image', 'reduction', 'not compressed, MB'],
            [line(row) for row in rows])
