"""Checkpoint and restart of a whole deployment (Nicolae et al., RR-7482, sections 3.2 and 5.5).

Through the APIs of Nova and Glance alone; how a single snapshot is made is the hosts' affair.
"""
