BEGIN TRANSACTION;
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL);
INSERT INTO "meta" VALUES('format','3');
CREATE TABLE profiles (
        key TEXT PRIMARY KEY, what TEXT NOT NULL, device TEXT NOT NULL, updated REAL NOT NULL, data TEXT NOT NULL);
INSERT INTO "profiles" VALUES('0f51cb2529239f8fcb49','python3 train.py --lr 0.2','host 24GiB',1.79518537844617033006e+09,'{"parts": {"host": {"full": [73523200], "lower": 0, "lower_by": "profile", "above": 0}}, "epoch_seconds": 0.0, "whole_seconds": 0.9065800339994894, "cores": 0.0, "busy": 0.0, "family": "1444c634151ba256e812", "slots": [["--lr", "0.2"]], "relations": ["87bd6bed74410547befe", "0d47c675e828746679fc"]}');
INSERT INTO "profiles" VALUES('ab523966fbd88c9f7cef','python3 train.py --lr 0.1','host 24GiB',1.79518537858584117886e+09,'{"parts": {"host": {"full": [73478144], "lower": 0, "lower_by": "profile", "above": 0}}, "epoch_seconds": 0.0, "whole_seconds": 1.0350448619974486, "cores": 0.050924362735622106, "busy": 0.0, "family": "1444c634151ba256e812", "slots": [["--lr", "0.1"]], "relations": ["87bd6bed74410547befe", "0d47c675e828746679fc"]}');
INSERT INTO "profiles" VALUES('c581293ff986ccc2bc9e','python3 train.py --lr 0.4','host 24GiB',1.79518537960559153559e+09,'{"parts": {"host": {"full": [73564160], "lower": 0, "lower_by": "profile", "above": 0}}, "epoch_seconds": 0.0, "whole_seconds": 0.9549027440007194, "cores": 0.0, "busy": 0.0, "family": "1444c634151ba256e812", "slots": [["--lr", "0.4"]], "relations": ["87bd6bed74410547befe", "0d47c675e828746679fc"]}');
INSERT INTO "profiles" VALUES('d0472ead2b6f867ecbf5','python3 train.py bad','host 24GiB',1.79518538025752115256e+09,'{"parts": {"host": {"full": [], "lower": 0, "lower_by": "profile", "above": 73592832}}, "epoch_seconds": 0.0, "whole_seconds": 0.0, "cores": 0.0, "busy": 0.0, "family": "1444c634151ba256e812", "slots": [["1", "bad"]], "relations": ["87bd6bed74410547befe", "0d47c675e828746679fc"]}');
COMMIT;
