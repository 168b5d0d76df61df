"""The tables of journals and profiles, the versions of their formats, and every SQL statement of this project."""

from __future__ import annotations

VERSION = 8
"""The format of a journal, which is raised with every change of a table, and of a field of an event, an option or a
setting. A version reads only its own format, and names the version that a run needs.
"""

AHEAD = "PRAGMA journal_mode = WAL"
OPEN = (
    AHEAD,
    "PRAGMA synchronous = FULL",
    "PRAGMA wal_autocheckpoint = 500",  # overwriting takes two thirds of the time of appending
    "PRAGMA cache_size = -8000",
)

TRY = ("PRAGMA synchronous = OFF", AHEAD, "CREATE TABLE try (number INTEGER)")
"""The statements that fail on a disk on which a journal cannot be stored."""

LATER = "PRAGMA synchronous = NORMAL"
"""The statement after which the end of a transaction does not wait for the disk, so that a power failure may lose the
transaction."""
NOW = "PRAGMA synchronous = FULL"

CREATE = (  # each row ends with a checksum of its other columns, except the place of an event
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE forms (number INTEGER PRIMARY KEY, text TEXT NOT NULL, sum INTEGER NOT NULL)",
    "CREATE TABLE terms (number INTEGER PRIMARY KEY, text TEXT NOT NULL, sum INTEGER NOT NULL)",
    """CREATE TABLE submitted (task INTEGER PRIMARY KEY, batch INTEGER, row INTEGER, nth INTEGER,
                             terms INTEGER, form INTEGER, text TEXT, sum INTEGER NOT NULL)""",
    """CREATE TABLE events (seq INTEGER PRIMARY KEY, at REAL NOT NULL, kind TEXT NOT NULL,
                          task INTEGER, attempt INTEGER, data TEXT NOT NULL, sum INTEGER NOT NULL)""",
)

PROFILES_VERSION = 3
"""The format of profiles.db; a file in another format is set aside, and its profiles are learned again."""

CREATE_PROFILES = (
    "CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS profiles (
        key TEXT PRIMARY KEY, what TEXT NOT NULL, device TEXT NOT NULL, updated REAL NOT NULL, data TEXT NOT NULL)""",
)
GET_PROFILES_META = "SELECT name, value FROM meta"
PUT_PROFILES_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
GET_PROFILES = "SELECT key, what, device, updated, data FROM profiles ORDER BY what, key"
GET_PROFILE = "SELECT data FROM profiles WHERE key = ?"
PUT_PROFILE = "INSERT OR REPLACE INTO profiles VALUES (?, ?, ?, ?, ?)"
ADD_PROFILE = "INSERT OR IGNORE INTO profiles VALUES (?, ?, ?, ?, ?)"
MOST_PROFILES = 20_000
"""The number of newest profiles that are kept; it is limited because a list of distinct commands adds one profile with
each row.
"""
PRUNE_PROFILES = f"""DELETE FROM profiles WHERE key IN
    (SELECT key FROM profiles ORDER BY updated DESC LIMIT -1 OFFSET {MOST_PROFILES})"""
DROP_PROFILE = "DELETE FROM profiles WHERE key = ?"

PUT_META = "INSERT OR REPLACE INTO meta VALUES (?, ?, ?)"
GET_META = "SELECT name, value, sum FROM meta"
COUNT_META = "SELECT count(*) FROM meta WHERE name != 'facts'"
GET_FORMAT = "SELECT value FROM meta WHERE name = 'format'"
GET_TABLES = "SELECT count(*) FROM sqlite_master WHERE name = 'meta'"
GET_ACCEPTED = "SELECT 1 FROM meta WHERE name = 'accepted'"
PUT_FORM = "INSERT INTO forms VALUES (?, ?, ?)"
GET_FORMS = "SELECT number, text, sum FROM forms ORDER BY number"
PUT_TERMS = "INSERT INTO terms VALUES (?, ?, ?)"
GET_TERMS = "SELECT number, text, sum FROM terms ORDER BY number"
PUT_ROW = "INSERT INTO submitted VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
MOVE_ROWS = (
    """UPDATE submitted SET task = -(task + :by), sum = row_sum(task + :by, batch, row, nth, terms, form, text)
    WHERE task >= :first""",
    "UPDATE submitted SET task = -task WHERE task < 0",
)
"""The statements that raise the ids of rows, in two steps, because a new id may still belong to another row that must
move too.
"""
_ROW = "SELECT task, batch, row, nth, terms, form, text, sum FROM submitted"
GET_ROW = f"{_ROW} WHERE task = ?"
GET_ROWS = f"{_ROW} WHERE batch > ? ORDER BY task"
GET_ROWS_FROM = f"{_ROW} WHERE task >= ? AND task < ? ORDER BY task"
GET_WITHIN = "SELECT task FROM submitted WHERE task BETWEEN ? AND ? ORDER BY task"
GET_LAST = "SELECT max(task) FROM submitted"
GET_MOST = "SELECT (SELECT max(number) FROM terms), (SELECT max(number) FROM forms)"
COUNT_ROWS = "SELECT count(*), max(batch) FROM submitted"
PUT_EVENT = "INSERT INTO events (at, kind, task, attempt, data, sum) VALUES (?, ?, ?, ?, ?, ?)"
_EVENT = "SELECT seq, at, kind, task, attempt, data, sum FROM events"
GET_EVENTS = f"{_EVENT} WHERE seq > ? ORDER BY seq"
GET_STATE_EVENTS = """SELECT seq, at, kind, task, attempt,
    CASE WHEN kind IN ('peaked', 'resized', 'learned', 'arrived') THEN NULL ELSE data END, sum
    FROM events ORDER BY seq"""
"""The statement that selects all events. Events that do not change a state come without their data, so that a missing
event is still noticed.
"""
GET_NEWEST = "SELECT max(seq) FROM events"
GET_CHANGES = f"{_EVENT} WHERE kind = 'changed' ORDER BY seq"
GET_TASK_EVENTS = f"{_EVENT} WHERE task = ? ORDER BY seq"
BEGIN = "BEGIN IMMEDIATE"
BEGIN_TO_READ = "BEGIN DEFERRED"
COMMIT = "COMMIT"
ROLLBACK = "ROLLBACK"
CHECKPOINT = "PRAGMA wal_checkpoint(TRUNCATE)"
LOOK = "PRAGMA schema_version"
ALONE = "PRAGMA locking_mode = EXCLUSIVE"
"""The first statement on a connection; it makes SQLite share no memory file with other processes."""
BUSY = "PRAGMA busy_timeout = 5000"
