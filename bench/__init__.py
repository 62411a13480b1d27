"""The benchmarks of tools/bench.sh.

They use the product and tools; nothing uses them but their own tests.
"""
