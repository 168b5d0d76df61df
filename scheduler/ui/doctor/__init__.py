"""The page that `scheduler doctor` prints: findings as lines in groups, each problem with its cure.

The facts are collected by `app/doctor`; nothing here looks at the machine. Start at `page`.
"""
