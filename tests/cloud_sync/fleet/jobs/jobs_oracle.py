"""The jobs' results once more, in SQL by DuckDB: another engine, and no code in common with the jobs."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb

_1970 = datetime(1970, 1, 1, tzinfo=UTC)

MOMENTS = """
CREATE TEMP VIEW moments AS
SELECT gw, boot, boottime_us, epoch, seq, arrival, trusted FROM observations
UNION ALL SELECT gw, boot, boottime_us, epoch, seq, arrival, trusted FROM actuations
"""

OFFSETS = """
CREATE TEMP VIEW offsets AS
SELECT DISTINCT ON (gw, boot) gw, boot, epoch_us(arrival) - boottime_us AS offset_us
FROM moments WHERE trusted ORDER BY gw, boot, boottime_us, epoch, seq
"""

TIMED = """
CREATE TEMP VIEW {name} AS
SELECT t.*,
  CASE
    WHEN trusted AND result_time >= arrival - INTERVAL 31 DAY AND result_time <= arrival + INTERVAL 5 MINUTE
      THEN result_time
    WHEN trusted THEN arrival
    ELSE make_timestamptz(boottime_us + offset_us)
  END AS time,
  CASE
    WHEN trusted AND result_time >= arrival - INTERVAL 31 DAY AND result_time <= arrival + INTERVAL 5 MINUTE
      THEN 'result'
    WHEN trusted THEN 'arrival'
    WHEN offset_us IS NOT NULL THEN 'repaired'
  END AS clock
FROM {table} t LEFT JOIN offsets o ON t.gw = o.gw AND t.boot = o.boot
"""

AGGREGATES = """
SELECT {keys}, date_trunc('{period}', time) AS {period}, count(*) AS count, count(v) AS measured, avg(v) AS mean,
  min(v) AS min, max(v) AS max, quantile_disc(v, 0.05) AS p05, quantile_disc(v, 0.5) AS p50,
  quantile_disc(v, 0.95) AS p95, count(*) FILTER (clock = 'repaired') AS repaired
FROM (SELECT *, CASE WHEN number IS NULL THEN flag::INTEGER::DOUBLE ELSE number END AS v FROM readings)
WHERE time IS NOT NULL GROUP BY ALL
"""

STEPS = """
CREATE TEMP TABLE steps AS
WITH one AS (
  SELECT *, row_number() OVER (PARTITION BY gw ORDER BY time, epoch, seq, stream) AS n
  FROM readings WHERE time IS NOT NULL
), quiet AS (
  SELECT a.gw, a.n, b.time AS since, (epoch_us(a.time) - epoch_us(b.time)) / 1e6 AS s
  FROM one a JOIN one b ON a.gw = b.gw AND a.n = b.n + 1
  WHERE epoch_us(a.time) - epoch_us(b.time) > 30000000
), own AS (
  SELECT *, row_number() OVER (PARTITION BY gw, stream ORDER BY n) AS m FROM one
)
SELECT a.gw, a.stream, a.sensor, a.property, a.feature, b.time AS start, a.time AS end,
  (epoch_us(a.time) - epoch_us(b.time)) / 1e6 AS s, a.n, a.m,
  coalesce((SELECT max(q.s) FROM quiet q WHERE q.gw = a.gw AND q.n > b.n AND q.n <= a.n), 0) AS gateway_s,
  a.boot <> b.boot AS restarted, a.epoch <> b.epoch AS history_lost
FROM own a LEFT JOIN own b ON a.gw = b.gw AND a.stream = b.stream AND a.m = b.m + 1
"""

USUAL = """
CREATE TEMP TABLE usual AS
SELECT gw, stream, count(*) AS timed, min("end") AS first, max("end") AS last, quantile_disc(s, 0.5) AS median_s,
  quantile_disc(s, 0.9) AS p90_s, max(max("end")) OVER (PARTITION BY gw) AS gateway_last,
  arg_max(sensor, n) AS sensor, arg_max(property, n) AS property, arg_max(feature, n) AS feature
FROM steps GROUP BY gw, stream
"""

GAPS = """
CREATE TEMP TABLE gaps AS
WITH every AS (
  SELECT gw, stream, sensor, property, feature, start, "end", s AS gap_s, gateway_s, restarted, history_lost
  FROM steps WHERE start IS NOT NULL
  UNION ALL
  SELECT gw, stream, sensor, property, feature, last, NULL, (epoch_us(gateway_last) - epoch_us(last)) / 1e6, 0,
    false, false
  FROM usual
)
SELECT e.*, u.median_s AS expected_s, CASE WHEN gateway_s > gap_s / 2 THEN 'gateway' ELSE 'sensor' END AS reason
FROM every e JOIN usual u USING (gw, stream) WHERE gap_s > 60 AND gap_s > 3 * p90_s
"""

UPTIME = """
CREATE TEMP TABLE uptime AS
WITH found AS (
  SELECT gw, stream, count(*) AS readings, count(*) FILTER (time IS NULL) AS untimed, any_value(sensor) AS sensor,
    any_value(property) AS property, any_value(feature) AS feature
  FROM readings GROUP BY gw, stream
), down AS (
  SELECT gw, stream, count(*) AS gaps, sum(gap_s - expected_s) AS down_s, max(gap_s) AS longest_s,
    sum(CASE WHEN gateway_s < gap_s - expected_s THEN gateway_s ELSE gap_s - expected_s END) AS gateway_down_s
  FROM gaps GROUP BY gw, stream
)
SELECT f.*, u.first, u.last, u.median_s AS expected_s, coalesce(gaps, 0) AS gaps, coalesce(down_s, 0) AS down_s,
  coalesce(gateway_down_s, 0) AS gateway_down_s, longest_s,
  CASE WHEN timed >= 2 THEN 1 - coalesce(down_s, 0) / ((epoch_us(gateway_last) - epoch_us(first)) / 1e6) END AS uptime
FROM found f LEFT JOIN usual u USING (gw, stream) LEFT JOIN down d USING (gw, stream)
"""

ANOMALIES = """
CREATE TEMP TABLE anomalies AS
WITH v AS (
  SELECT *, coalesce(unit, '-') AS u, hour(time) AS h FROM readings WHERE number IS NOT NULL AND time IS NOT NULL
), m AS (
  SELECT property, u, h, quantile_disc(number, 0.5) AS median, count(*) AS n FROM v GROUP BY ALL
), d AS (
  SELECT property, u, h, any_value(median) AS median, quantile_disc(abs(number - median), 0.5) AS mad,
    avg(abs(number - median)) AS ad
  FROM v JOIN m USING (property, u, h) WHERE n >= 30 GROUP BY ALL
), s AS (SELECT property, u, h, median, CASE WHEN mad = 0 THEN 1.253314 * ad ELSE 1.4826 * mad END AS scale FROM d)
SELECT gw, epoch, seq, stream, sensor, property, feature, unit, time, number, median, scale,
  (number - median) / scale AS z
FROM v JOIN s USING (property, u, h) WHERE scale > 0 AND abs(number - median) >= 3.5 * scale
"""

ANOMALOUS_STREAMS = """
CREATE TEMP TABLE anomalous_streams AS
SELECT gw, stream, sensor, property, feature, unit, count(*) AS anomalies, min(time) AS first, max(time) AS last,
  arg_max(z, abs(z)) AS worst_z
FROM anomalies GROUP BY ALL
"""

STATES = """
CREATE TEMP TABLE states AS
WITH acting AS (
  SELECT * FROM acts WHERE kind = 'acknowledged'
    OR (gw, actuator) NOT IN (SELECT (gw, actuator) FROM acts WHERE kind = 'acknowledged')
), numbered AS (
  SELECT *, row_number() OVER (PARTITION BY gw, actuator ORDER BY epoch, seq) AS n FROM acting
), lasts AS (
  SELECT DISTINCT ON (gw) gw, epoch, boot, boottime_us, time FROM (
    SELECT gw, epoch, seq, boot, boottime_us, time FROM acts
    UNION ALL SELECT gw, epoch, seq, boot, boottime_us, time FROM readings
  ) ORDER BY gw, epoch DESC, seq DESC
), paired AS (
  SELECT a.gw, a.actuator, a.epoch, a.boot, a.boottime_us, a.time, a.value, p.value AS before,
    CASE WHEN b.gw IS NULL THEN l.epoch ELSE b.epoch END AS e2,
    CASE WHEN b.gw IS NULL THEN l.boot ELSE b.boot END AS b2,
    CASE WHEN b.gw IS NULL THEN l.boottime_us ELSE b.boottime_us END AS u2,
    CASE WHEN b.gw IS NULL THEN l.time ELSE b.time END AS t2
  FROM numbered a
  LEFT JOIN numbered b ON a.gw = b.gw AND a.actuator = b.actuator AND b.n = a.n + 1
  LEFT JOIN numbered p ON a.gw = p.gw AND a.actuator = p.actuator AND p.n = a.n - 1
  JOIN lasts l ON l.gw = a.gw
), lengths AS (
  SELECT *, CASE WHEN boot = b2 THEN u2 - boottime_us
    WHEN epoch_us(t2) < epoch_us(time) THEN 0 ELSE epoch_us(t2) - epoch_us(time) END AS us
  FROM paired WHERE value = 'ON'
)
SELECT gw, actuator, before IS DISTINCT FROM 'ON' AS switched, e2 = epoch AND us IS NOT NULL AS known, us,
  CASE WHEN time IS NULL THEN make_timestamptz(epoch_us(t2) - us) ELSE time END AS start
FROM lengths
"""

LAMP_DAYS = """
WITH RECURSIVE days AS (
  SELECT min(date_trunc('day', start)) AS day FROM states
  UNION ALL SELECT day + INTERVAL 1 DAY FROM days WHERE day < (SELECT max(start) + INTERVAL 30 DAY FROM states)
), parts AS (
  SELECT gw, actuator, day,
    (least(epoch_us(start) + us, epoch_us(day) + 86400000000) - greatest(epoch_us(start), epoch_us(day))) / 1e6 AS s,
    switched AND start >= day AS switched, false AS unknown
  FROM states JOIN days ON epoch_us(start) + us >= epoch_us(day) AND start < day + INTERVAL 1 DAY WHERE known
  UNION ALL SELECT gw, actuator, NULL, us / 1e6, switched, false FROM states WHERE known AND start IS NULL
  UNION ALL SELECT gw, actuator, date_trunc('day', start), 0, switched, true FROM states WHERE NOT known
), summed AS (
  SELECT gw, actuator, day, sum(s) AS on_s, count(*) FILTER (switched) AS switched_on,
    count(*) FILTER (unknown) AS unknown
  FROM parts GROUP BY ALL
), powered AS (
  SELECT *, CASE WHEN actuator LIKE '%/lamp/9' THEN 150.0 ELSE 40.0 END AS watts FROM summed
)
SELECT *, on_s / 3600 * watts / 1000 AS kwh FROM powered WHERE on_s > 0 OR switched_on > 0 OR unknown > 0
"""

REACTIONS = """
CREATE TEMP TABLE reactions AS
WITH c AS (SELECT * FROM actuations WHERE kind = 'command' AND cause_seq IS NOT NULL)
SELECT c.gw, c.epoch, c.seq, c.actuator, c.value, c.changed, c.cause_kind, c.cause_id, c.cause_seq AS trigger_seq,
  o.property, o.feature, o.value AS reading,
  CASE WHEN c.boot = o.boot THEN (c.boottime_us - o.boottime_us) / 1000 END AS reaction_ms,
  CASE WHEN c.boot = o.boot AND c.changed THEN (
    SELECT (k.boottime_us - o.boottime_us) / 1000 FROM actuations k
    WHERE k.gw = c.gw AND k.epoch = c.epoch AND k.actuator = c.actuator AND k.kind = 'acknowledged'
      AND k.value = c.value AND k.boot = c.boot AND k.seq > c.seq
      AND NOT EXISTS (
        FROM actuations x WHERE x.gw = c.gw AND x.epoch = c.epoch AND x.actuator = c.actuator AND x.seq > c.seq
          AND x.seq < k.seq AND (x.kind = 'acknowledged' OR x.changed)
      )
  ) END AS acknowledged_ms
FROM c JOIN observations o ON o.gw = c.gw AND o.epoch = c.epoch AND o.seq = c.cause_seq
"""

REACTION_TIMES = """
SELECT property, cause_kind, cause_id, value, count(*) AS reactions, count(*) FILTER (changed) AS changes,
  count(acknowledged_ms) AS acknowledged,
  quantile_disc(reaction_ms, 0.5) AS reaction_p50_ms, quantile_disc(reaction_ms, 0.95) AS reaction_p95_ms,
  quantile_disc(reaction_ms, 0.99) AS reaction_p99_ms, max(reaction_ms) AS reaction_max_ms,
  quantile_disc(acknowledged_ms, 0.5) AS acknowledged_p50_ms,
  quantile_disc(acknowledged_ms, 0.95) AS acknowledged_p95_ms,
  quantile_disc(acknowledged_ms, 0.99) AS acknowledged_p99_ms, max(acknowledged_ms) AS acknowledged_max_ms
FROM reactions GROUP BY ALL
"""

HEARD = """
CREATE TEMP TABLE heard AS
SELECT gw, max(t) AS heard, greatest(max(t), max(landed)) AS seen, max(landed) AS landed FROM (
  SELECT gw, CASE WHEN untrusted = 0 THEN last_ts END AS t, landed FROM gateway_health
  UNION ALL SELECT gw, time, NULL FROM readings WHERE time IS NOT NULL
) GROUP BY gw
"""

DEAD_SENSORS = """
CREATE TEMP TABLE dead_sensors AS
WITH judged AS (
  SELECT s.gw, s.stream, s.sensor, s.property, s.feature, s.label, u.last,
    (epoch_us(heard) - epoch_us(last)) / 1e6 AS silent_s, median_s AS expected_s, p90_s, readings,
    seen < (SELECT coalesce(max(landed), max(heard)) FROM heard) - INTERVAL 1 DAY AS quiet
  FROM streams s LEFT JOIN heard h USING (gw) LEFT JOIN usual u USING (gw, stream)
    LEFT JOIN (SELECT gw, stream, count(*) AS readings FROM readings GROUP BY gw, stream) USING (gw, stream)
  WHERE until_seq IS NULL
)
SELECT * EXCLUDE (p90_s, quiet, readings),
  CASE WHEN quiet THEN 'gateway silent' WHEN readings IS NULL THEN 'never' ELSE 'dead' END AS state
FROM judged WHERE quiet OR readings IS NULL OR (silent_s > 3600 AND (p90_s IS NULL OR silent_s > 10 * p90_s))
"""

CLOCK_QUALITY = """
CREATE TEMP TABLE clock_quality AS
WITH starts AS (
  SELECT gw, boot, max(offset_max_us) FILTER (untrusted = 0) - min(offset_min_us) FILTER (untrusted = 0) AS spread,
    max(offset_max_us) - min(offset_min_us) AS step
  FROM gateway_health GROUP BY gw, boot
), a AS (
  SELECT gw, sum(records) AS records, sum(untrusted) AS untrusted, sum(untrusted) / sum(records) AS untrusted_share,
    count(DISTINCT boot) AS boots, count(DISTINCT epoch) AS epochs, sum(lost) AS lost,
    coalesce(sum(ahead), 0) AS ahead
  FROM gateway_health GROUP BY gw
), b AS (SELECT gw, max(spread) / 1000 AS spread_ms, max(step) / 1000 AS step_ms FROM starts GROUP BY gw), c AS (
  SELECT gw, count(*) AS readings, count(*) FILTER (clock = 'repaired') AS repaired,
    count(*) FILTER (time IS NULL) AS untimed,
    count(*) FILTER (clock = 'arrival' AND result_time IS NOT NULL) AS result_wrong
  FROM readings GROUP BY gw
)
SELECT *, CASE WHEN ahead > 0 THEN 'ahead' WHEN untimed > 0 THEN 'unknown'
  WHEN untrusted * 100 > records THEN 'untrusted'
  WHEN spread_ms > 2000 THEN 'stepped' ELSE 'good' END AS quality
FROM a JOIN b USING (gw) JOIN c USING (gw)
"""

FLEET_HEALTH = """
WITH s AS (SELECT gw, count(*) AS streams, avg(uptime) AS uptime, sum(gaps) AS gaps FROM uptime GROUP BY gw),
d AS (SELECT gw, count(*) FILTER (state IN ('dead', 'never')) AS dead FROM dead_sensors GROUP BY gw),
n AS (SELECT gw, sum(anomalies) AS anomalies, count(*) AS anomalous FROM anomalous_streams GROUP BY gw),
p AS (
  SELECT gw, quantile_disc(latitude, 0.5) AS latitude, quantile_disc(longitude, 0.5) AS longitude
  FROM streams WHERE until_seq IS NULL GROUP BY gw
),
j AS (
  SELECT q.gw, heard, records, lost, coalesce(streams, 0) AS streams, readings, uptime, coalesce(gaps, 0) AS gaps,
    coalesce(dead, 0) AS dead, coalesce(anomalies, 0) AS anomalies, coalesce(anomalous, 0) AS anomalous,
    quality AS clock, latitude, longitude,
    seen < (SELECT coalesce(max(landed), max(heard)) FROM heard) - INTERVAL 1 DAY AS quiet
  FROM clock_quality q LEFT JOIN s USING (gw) LEFT JOIN d USING (gw) LEFT JOIN n USING (gw) LEFT JOIN heard USING (gw)
    LEFT JOIN p USING (gw)
)
SELECT * EXCLUDE quiet, CASE WHEN quiet THEN 'silent' WHEN dead + lost > 0 THEN 'bad'
  WHEN uptime < 0.95 OR anomalies * 1000 > readings OR clock <> 'good' THEN 'watch' ELSE 'good' END AS health
FROM j
"""

RESULTS = {
    "hourly": AGGREGATES.format(period="hour", keys="gw, property, feature, unit"),
    "daily": AGGREGATES.format(period="day", keys="gw, property, feature, unit"),
    "trends": AGGREGATES.format(period="hour", keys="property, unit"),
    "gaps": "FROM gaps",
    "uptime": "FROM uptime",
    "anomalies": "FROM anomalies",
    "anomalous_streams": "FROM anomalous_streams",
    "lamp_days": LAMP_DAYS,
    "reactions": "FROM reactions",
    "reaction_times": REACTION_TIMES,
    "dead_sensors": "FROM dead_sensors",
    "clock_quality": "FROM clock_quality",
    "fleet_health": FLEET_HEALTH,
}
"""Result of the jobs -> SQL over what `connect` sets up. Without the column `why`, which is words."""


def connect(tables: Path) -> duckdb.DuckDBPyConnection:
    """A connection with the tables of a folder and everything above. Lamps called lamp/9 take 150 W, others 40."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    for name in ("streams", "observations", "actuations", "gateway_health"):
        connection.execute(f"CREATE VIEW {name} AS FROM '{tables / name}.parquet'")
    connection.execute(MOMENTS)
    connection.execute(OFFSETS)
    connection.execute(TIMED.format(name="readings", table="observations"))
    connection.execute(TIMED.format(name="acts", table="actuations"))
    for statement in (STEPS, USUAL, GAPS, UPTIME, ANOMALIES, ANOMALOUS_STREAMS, STATES, REACTIONS, HEARD):
        connection.execute(statement)
    connection.execute(DEAD_SENSORS)
    connection.execute(CLOCK_QUALITY)
    return connection


def rows(connection: duckdb.DuckDBPyConnection, sql: str) -> list[dict[str, Any]]:
    """The rows of a query, by column; times with a zone."""
    found = connection.sql(sql)
    moments = [str(kind) == "TIMESTAMP WITH TIME ZONE" for kind in found.types]
    # As numbers, since DuckDB needs another package for zones.
    columns = [
        f'epoch_us("{name}")' if moment else f'"{name}"' for name, moment in zip(found.columns, moments, strict=True)
    ]
    return [
        {
            name: _1970 + timedelta(microseconds=value) if moment and value is not None else value
            for name, value, moment in zip(found.columns, row, moments, strict=True)
        }
        for row in found.project(", ".join(columns)).fetchall()
    ]
