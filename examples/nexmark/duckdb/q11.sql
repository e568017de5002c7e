WITH marked AS (
  SELECT bidder, event_time, event_time - lag(event_time) OVER earlier >= 10000 AS begins
  FROM bids
  WINDOW earlier AS (PARTITION BY bidder ORDER BY event_time)
), numbered AS (
  SELECT bidder, event_time, sum(CASE WHEN begins THEN 1 ELSE 0 END) OVER earlier AS session
  FROM marked
  WINDOW earlier AS (PARTITION BY bidder ORDER BY event_time ROWS UNBOUNDED PRECEDING)
)
SELECT max(event_time) + 10000 AS event_time, bidder, count(*) AS bids, min(event_time) AS start_time
FROM numbered
GROUP BY bidder, session
