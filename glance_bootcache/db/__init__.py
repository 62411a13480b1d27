"""The storage service's database: tables, connections, migrations, and the writer of reports."""
