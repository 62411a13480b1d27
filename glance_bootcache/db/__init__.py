"""The storage service's database: tables, connections, migrations, and the writer of reports.

What it imports is in the extra ``bootcache[storage]``.
"""
