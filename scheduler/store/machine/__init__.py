"""Files that all schedulers of a machine share: leases, wait tickets, device reservations, the site's rules.

Everything read here was written by other users and is not trusted. Start at `records`, the one store of all these
files, then `leases`.
"""
