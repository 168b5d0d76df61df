"""The tables of a journal, their version, and every SQL statement there is."""

from __future__ import annotations

VERSION = 1
"""Raised with every change of the tables; `migrate` in journal.py brings older ones up."""

AHEAD = "PRAGMA journal_mode = WAL"
OPEN = (
    AHEAD,
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 500",  # what is written over is on the disk in two thirds of the time of what grows
    "PRAGMA cache_size = -8000",
)

LATER = "PRAGMA synchronous = NORMAL"
"""What was written last may be lost with the power, but nobody waits for the disk."""
NOW = "PRAGMA synchronous = FULL"

CREATE = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE forms (number INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    "CREATE TABLE terms (number INTEGER PRIMARY KEY, text TEXT NOT NULL)",
    """CREATE TABLE submitted (task INTEGER PRIMARY KEY, batch INTEGER, row INTEGER, nth INTEGER,
                             terms INTEGER, form INTEGER, text TEXT)""",
    """CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL,
                          task INTEGER, attempt INTEGER, data TEXT NOT NULL)""",
)

PROFILES_VERSION = 2
"""Of profiles.db; a newer one is set aside and everything is learned again. 1 knew one peak, that on the host."""

CREATE_PROFILES = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS profiles (
        key TEXT PRIMARY KEY, what TEXT NOT NULL, device TEXT NOT NULL, updated REAL NOT NULL, data TEXT NOT NULL)""",
)
GET_PROFILES = "SELECT key, what, device, updated, data FROM profiles ORDER BY what, key"
GET_PROFILE = "SELECT data FROM profiles WHERE key = ?"
PUT_PROFILE = "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?)"
MOST_PROFILES = 20_000
"""So many are kept, the newest: a list whose every row is named otherwise would add a profile with each of them."""
PRUNE_PROFILES = f"""DELETE FROM profiles WHERE key IN
    (SELECT key FROM profiles ORDER BY updated DESC LIMIT -1 OFFSET {MOST_PROFILES})"""
DROP_PROFILE = "DELETE FROM profiles WHERE key = ?"

PUT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
GET_META = "SELECT name, value FROM meta"
PUT_FORM = "INSERT INTO forms VALUES (?, ?)"
GET_FORMS = "SELECT number, text FROM forms ORDER BY number"
PUT_TERMS = "INSERT INTO terms VALUES (?, ?)"
GET_TERMS = "SELECT text FROM terms ORDER BY number"
PUT_ROW = "INSERT INTO submitted VALUES (?, ?, ?, ?, ?, ?, ?)"
GET_ROW = "SELECT row, nth, terms, form, text FROM submitted WHERE task = ?"
GET_ROWS = "SELECT task, batch, row, nth, terms, form, text FROM submitted ORDER BY task"
GET_BATCHES = "SELECT batch, task, terms FROM submitted WHERE batch > ? ORDER BY task"
GET_WITHIN = "SELECT task FROM submitted WHERE task BETWEEN ? AND ? ORDER BY task"
GET_LAST = "SELECT max(task) FROM submitted"
COUNT_ROWS = "SELECT count(*), max(batch) FROM submitted"
PUT_EVENT = "INSERT INTO events (at, kind, task, attempt, data) VALUES (?, ?, ?, ?, ?)"
GET_EVENTS = "SELECT seq, at, kind, data FROM events WHERE seq > ? ORDER BY seq"
GET_MOVES = """SELECT seq, at, kind, data FROM events
    WHERE kind NOT IN ('peaked', 'resized', 'learned') ORDER BY seq"""
GET_NEWEST = "SELECT max(seq) FROM events"
GET_CHANGES = "SELECT seq, at, kind, data FROM events WHERE kind = 'changed' ORDER BY seq"
GET_STORY = "SELECT seq, at, kind, data FROM events WHERE task = ? ORDER BY seq"
BEGIN = "BEGIN IMMEDIATE"
BEGIN_TO_READ = "BEGIN DEFERRED"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
CHECKPOINT = "PRAGMA wal_checkpoint(TRUNCATE)"
LOOK = "PRAGMA schema_version"
ALONE = "PRAGMA locking_mode = EXCLUSIVE"
"""Before anything else: then no file is shared with others."""
BUSY = "PRAGMA busy_timeout = 5000"
