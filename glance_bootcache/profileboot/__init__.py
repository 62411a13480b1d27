"""Profile boots: boots that are run only to record a working set (SC13 section 3.2)."""
